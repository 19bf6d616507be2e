mod machine; // bytes  -> values
mod print; // values -> text

use std::borrow::Cow;
use std::fmt;

use machine::Machine;

/// Fields of an object that are looked through for one of them. Objects of checkpoints have some ten; one that many share and that has
/// millions would be looked through for ever.
const FIELDS_MAX: usize = 1 << 10;

/// A value, by its place in [`Pickle`].
pub type Id = u32;

/// What a pickle says, as values that do nothing: classes and functions are names, and what would be made by calling
/// them is kept as the call that it is.
///
/// All protocols (0 to 5) are read. There is no recursion, and memory is at most some tens of bytes for each byte read.
pub struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    begins: Vec<u32>,
    root: Id,
    /// Bytes up to and with the end mark.
    len: usize,
}

/// A value.
#[derive(Debug)]
pub enum Node<'a> {
    /// `None`
    None,
    /// `True` or `False`
    Bool(bool),
    /// A whole number that fits.
    Int(i64),
    /// One that does not: two's complement, little end first.
    Wide(Cow<'a, [u8]>),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A list.
    List(Vec<Id>),
    /// A set.
    Set(Vec<Id>),
    /// A dictionary, in the order in which it was written; keys may come twice.
    Dict(Vec<(Id, Id)>),
    /// A class or function.
    Global(Box<Global<'a>>),
    /// What a call would make.
    Object(Box<Object>),
    /// Something that is kept elsewhere.
    Persistent(Id),
}

/// The name of a class or function.
#[derive(Debug, PartialEq, Eq)]
pub struct Global<'a> {
    /// Where it is from.
    pub module: Cow<'a, str>,
    /// What it is called there.
    pub name: Cow<'a, str>,
}

/// A call that was not made.
#[derive(Debug)]
pub struct Object {
    /// What would be called.
    pub callable: Id,
    /// With what: usually a tuple.
    pub args: Id,
    /// What would be put into it.
    pub state: Option<Id>,
    /// What would be appended to it.
    pub items: Vec<Id>,
    /// What would be entered into it.
    pub entries: Vec<(Id, Id)>,
}

/// Why something is no pickle, or none that is read here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason}")]
pub struct PickleError {
    /// Where.
    pub offset: usize,
    /// Why.
    pub reason: String,
}

impl<'a> Pickle<'a> {
    /// Reads one pickle. What follows it is left alone.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PickleError> {
        Machine::run(bytes)
    }

    /// The value that everything else is part of.
    pub fn root(&self) -> Id {
        self.root
    }

    /// How many bytes the pickle takes.
    #[allow(clippy::len_without_is_empty)] // There is no empty one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All values, by their places. A tuple comes after everything that it holds; what else holds something may come before it.
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// A value.
    pub fn node(&self, id: Id) -> &Node<'a> {
        &self.nodes[id as usize]
    }

    /// The byte of the pickle at which it is written.
    pub fn offset(&self, id: Id) -> usize {
        self.begins[id as usize] as usize
    }

    /// Text, if it is that.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that counts something, if it is one.
    pub fn count(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// What a tuple or list holds.
    pub fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// What a dictionary holds; also one that is made by a call, as ordered ones are.
    pub fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.node(id) {
            Node::Dict(entries) => Some(entries),
            Node::Object(object) => Some(&object.entries),
            _ => None,
        }
    }

    /// The value of a key that is text. The last one counts, as it does in Python. Nothing is found in what has more than a thousand.
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        let entries = self.entries(id).filter(|entries| entries.len() <= FIELDS_MAX)?;
        entries.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    /// `module.name` of a class or function.
    pub fn global(&self, id: Id) -> Option<&Global<'a>> {
        match self.node(id) {
            Node::Global(global) => Some(global),
            _ => None,
        }
    }

    /// An object: its class, what it is made with, what is put into it.
    pub fn object(&self, id: Id) -> Option<Made<'_, 'a>> {
        let Node::Object(object) = self.node(id) else { return None };
        let class = self.global(object.callable)?;
        let args = self.sequence(object.args).unwrap_or(&[]);
        // Protocols 0 and 1 make objects through a helper that is told the class.
        if class.name == "_reconstructor" && (class.module == "copyreg" || class.module == "copy_reg") {
            return Some(Made { class: self.global(*args.first()?)?, args: &[], state: object.state });
        }
        Some(Made { class, args, state: object.state })
    }
}

/// An object: its class, what it is made with, what is put into it.
pub struct Made<'p, 'a> {
    /// The class or function.
    pub class: &'p Global<'a>,
    /// With what it would be called.
    pub args: &'p [Id],
    /// What would be put into it.
    pub state: Option<Id>,
}

impl Global<'_> {
    /// Whether it is this one.
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.module == module && self.name == name
    }
}

impl fmt::Display for Global<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(bytes: &[u8]) -> String {
        let pickle = Pickle::parse(bytes).unwrap();
        pickle.print(pickle.root())
    }

    fn refused(bytes: &[u8]) -> String {
        Pickle::parse(bytes).err().unwrap().to_string()
    }

    #[test]
    fn values_of_every_protocol() {
        // {'a': [1, -2, 3.5, None, True], 'é': (b'x', 2**40)}, as Python 3.12 writes it.
        let zero = b"(dp0\nVa\np1\n(lp2\nI1\naI-2\naF3.5\naNaI01\nasV\xe9\np3\n(c_codecs\nencode\np4\n(Vx\np5\nVlatin1\np6\ntp7\nRp8\nL1099511627776L\ntp9\ns.";
        assert_eq!(
            printed(zero),
            "{\"a\": (1, -2, 3.5, None, True), \"é\": (_codecs.encode(\"x\", \"latin1\"), 1099511627776), }"
        );
        let two = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\x00N\x88eX\x02\x00\x00\x00\xc3\xa9q\x03\x8a\x06\x00\x00\x00\x00\x00\x01u.";
        assert_eq!(printed(two), "{\"a\": (1, -2, 3.5, None, True), \"é\": 1099511627776, }");
        let four = b"\x80\x04\x95\x2d\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\x00N\x88e\x8c\x02\xc3\xa9\x94C\x01x\x94\x8a\x06\x00\x00\x00\x00\x00\x01\x86\x94u.";
        assert_eq!(printed(four), "{\"a\": (1, -2, 3.5, None, True), \"é\": (<1 bytes>, 1099511627776), }");
    }

    #[test]
    fn letters_that_do_not_exist_are_marked_and_other_bytes_refused() {
        // os.fsdecode(b"a\xffb\xfe") as Python 3.11 writes it, with protocols 2 and 4.
        assert_eq!(
            printed(b"\x80\x02X\x08\x00\x00\x00a\xed\xb3\xbfb\xed\xb3\xbeq\x00."),
            "\"a\u{fffd}b\u{fffd}\""
        );
        assert_eq!(printed(b"\x80\x04\x8c\x08a\xed\xb3\xbfb\xed\xb3\xbe\x94."), "\"a\u{fffd}b\u{fffd}\"");
        for bytes in [&b"\xff"[..], b"\xed\xb3", b"\xed\xb3\x7f", b"a\xb3\xbf", b"\xed\xed\xb3\xbf"] {
            let pickle = [b"\x80\x04\x8c", &[bytes.len() as u8][..], bytes, b"."].concat();
            assert!(refused(&pickle).contains("text that is not UTF-8"), "{bytes:x?}");
        }
    }

    #[test]
    fn nothing_is_called() {
        assert_eq!(printed(b"cos\nsystem\n(S'rm -rf /'\ntR."), "os.system(\"rm -rf /\")");
        assert_eq!(
            printed(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R."),
            "posix.system(\"ls\")"
        );
        assert_eq!(printed(b"(S'ls'\nios\nsystem\n."), "os.system(\"ls\")");
        assert_eq!(printed(b"(cos\nsystem\nS'ls'\no."), "os.system(\"ls\")");
    }

    #[test]
    fn what_is_no_pickle_is_refused_with_its_place() {
        assert_eq!(refused(b""), "byte 0: 1 bytes are announced and 0 are left");
        assert_eq!(refused(b"\x80\x09"), "byte 0: protocol 9 is not known here");
        assert_eq!(
            refused(b"N\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx"),
            "byte 1: 9223372036854775807 bytes are announced and 1 are left"
        );
        assert_eq!(refused(b"Nh\x05."), "byte 1: nothing is remembered as number 5");
        assert_eq!(
            refused(b"Nr\xff\xff\xff\xff."),
            "byte 1: number 4294967295 to remember something by is more than there can be"
        );
        assert_eq!(refused(b"N\x82\x01."), "byte 1: extension codes mean nothing here");
        assert_eq!(refused(b"(a."), "byte 1: it takes more values than there are");
        assert_eq!(refused(b"a."), "byte 0: it takes more values than there are");
        assert_eq!(refused(b"Nb."), "byte 1: it takes more values than there are");
        assert_eq!(refused(b"NNb."), "byte 2: a state for what is no object");
        assert_eq!(refused(b"\xff"), "byte 0: 0xff is no operation of a pickle");
    }

    #[test]
    fn names_of_classes_are_not_copied() {
        // A name of a megabyte, which is then used a hundred thousand times: 200 GB of copies.
        let mut bytes = [b"V", &vec![b'x'; 1 << 20][..], b"\\u0041\n\x94"].concat();
        let first = bytes.len();
        bytes.extend(b"h\x00h\x00\x930".repeat(100_000));
        bytes.push(b'.');
        let expected = format!("byte {}: the name of a class as text of protocol 0", first + 4);
        assert_eq!(refused(&bytes), expected);
    }

    #[test]
    fn fields_are_not_looked_for_in_what_has_thousands() {
        let dictionary = |count: usize| {
            let mut bytes = b"}(\x8c\x01aK\x01".to_vec();
            bytes.extend(b"NN".repeat(count));
            bytes.extend_from_slice(b"u.");
            let pickle = Pickle::parse(&bytes).unwrap();
            pickle.get(pickle.root(), "a").and_then(|id| pickle.count(id))
        };
        assert_eq!(dictionary(1000), Some(1));
        assert_eq!(dictionary(2000), None);
    }

    #[test]
    fn what_holds_itself_a_thousand_times_is_printed_in_a_line() {
        // Each list holds the one before ten times: 10^50 values, if somebody wrote them out.
        let mut bytes = b"]\x94".to_vec();
        for depth in 0..50_u8 {
            bytes.extend_from_slice(b"](");
            for _ in 0..10 {
                bytes.extend_from_slice(&[b'h', depth]);
            }
            bytes.extend_from_slice(b"e\x94");
        }
        bytes.push(b'.');
        assert!(printed(&bytes).len() < 1000);
        // A list that holds itself.
        assert_eq!(printed(b"]\x94h\x00a."), "((((((…))))))");
        // A million lists in each other: nothing here goes down by calling itself.
        let mut deep = vec![b']'; 1_000_000];
        deep.extend(std::iter::repeat_n(b'a', 999_999));
        deep.push(b'.');
        drop(Pickle::parse(&deep).unwrap());
    }
}

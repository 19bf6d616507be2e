use std::borrow::Cow;
use std::fmt::{self, Write};

/// Values that one pickle may hold, so that a small file cannot become much memory.
const NODES_MAX: usize = 1 << 27;

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
        let mut machine = Machine {
            bytes,
            at: 0,
            begin: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        };
        let root = machine.run()?;
        Ok(Self { nodes: machine.nodes, root, len: machine.at })
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

    /// A value.
    pub fn node(&self, id: Id) -> &Node<'a> {
        &self.nodes[id as usize]
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

    /// As Python would write it, or nearly; cut off where it becomes long. Shared values are written once for each use, but
    /// never more than the limit allows.
    pub fn print(&self, id: Id) -> String {
        let mut text = Limited { text: String::new(), left: 240 };
        // An error means that it is long enough.
        if self.write(id, 6, &mut text).is_err() {
            text.text.push('…');
        }
        text.text
    }

    fn write(&self, id: Id, depth: usize, out: &mut Limited) -> fmt::Result {
        if depth == 0 {
            return out.write_str("…");
        }
        let list = |ids: &[Id], out: &mut Limited| {
            ids.iter().enumerate().try_for_each(|(index, id)| {
                out.write_str(if index > 0 { ", " } else { "" })?;
                self.write(*id, depth - 1, out)
            })
        };
        match self.node(id) {
            Node::None => out.write_str("None"),
            Node::Bool(value) => out.write_str(if *value { "True" } else { "False" }),
            Node::Int(value) => write!(out, "{value}"),
            Node::Wide(bytes) => write!(out, "<number of {} bytes>", bytes.len()),
            Node::Float(value) => write!(out, "{value:?}"),
            Node::Text(text) => write!(out, "{text:?}"),
            Node::Bytes(bytes) => write!(out, "<{} bytes>", bytes.len()),
            Node::Tuple(items) | Node::List(items) | Node::Set(items) => {
                out.write_str("(")?;
                list(items, out)?;
                out.write_str(")")
            }
            Node::Dict(entries) => {
                out.write_str("{")?;
                for (key, value) in entries {
                    self.write(*key, depth - 1, out)?;
                    out.write_str(": ")?;
                    self.write(*value, depth - 1, out)?;
                    out.write_str(", ")?;
                }
                out.write_str("}")
            }
            Node::Global(global) => write!(out, "{}.{}", global.module, global.name),
            Node::Object(object) => {
                self.write(object.callable, depth - 1, out)?;
                self.write(object.args, depth - 1, out)?;
                object.state.map_or(Ok(()), |state| {
                    out.write_str(" with ")?;
                    self.write(state, depth - 1, out)
                })
            }
            Node::Persistent(id) => {
                out.write_str("persistent ")?;
                self.write(*id, depth - 1, out)
            }
        }
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

/// Text that does not grow for ever.
struct Limited {
    text: String,
    left: usize,
}

impl fmt::Write for Limited {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for letter in part.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            // Nothing that is printed moves a terminal's cursor.
            self.text.push(if letter.is_control() { '\u{fffd}' } else { letter });
        }
        Ok(())
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the operation that is being done begins, for errors.
    begin: usize,
    nodes: Vec<Node<'a>>,
    stack: Vec<Id>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

type Step<T = ()> = Result<T, PickleError>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Step<Id> {
        loop {
            self.begin = self.at;
            let code = self.byte()?;
            if code == b'.' {
                return self.pop();
            }
            self.step(code)?;
        }
    }

    fn step(&mut self, code: u8) -> Step {
        match code {
            0x80 => match self.byte()? {
                0..=5 => Ok(()),
                protocol => Err(self.error(format!("protocol {protocol} is not known here"))),
            },
            // Frames say how much may be read at once.
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => match self.marks.last() {
                Some(&mark) if mark == self.stack.len() => {
                    self.marks.pop().map(drop).ok_or_else(|| self.error("no mark"))
                }
                _ => self.pop().map(drop),
            },
            b'1' => self.pop_mark().map(drop),
            b'2' => {
                let top = *self.stack.last().ok_or_else(|| self.error("nothing to repeat"))?;
                self.stack.push(top);
                Ok(())
            }
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'I' | b'L' | b'F' | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'G' => self.number(code),
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => self.string(code),
            b')'
            | b't'
            | 0x85..=0x87
            | b']'
            | b'l'
            | b'a'
            | b'e'
            | b'}'
            | b'd'
            | b's'
            | b'u'
            | 0x8f
            | 0x90
            | 0x91 => self.container(code),
            b'g' | b'h' | b'j' | b'p' | b'q' | b'r' | 0x94 => self.memo(code),
            b'c' | 0x93 | b'i' | b'o' | b'R' | b'b' | 0x81 | 0x92 | b'P' | b'Q' => self.object(code),
            0x82..=0x84 => Err(self.error("extension codes mean nothing here")),
            0x97 | 0x98 => Err(self.error("buffers outside of the pickle are not known here")),
            code => Err(self.error(format!("{code:#04x} is no operation of a pickle"))),
        }
    }

    fn number(&mut self, code: u8) -> Step {
        let node = match code {
            b'J' => Node::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Node::Int(self.byte()?.into()),
            b'M' => Node::Int(u16::from_le_bytes(self.array()?).into()),
            b'G' => Node::Float(f64::from_be_bytes(self.array()?)),
            b'F' => {
                let line = self.line()?;
                Node::Float(line.trim().parse().map_err(|_| self.error("no number"))?)
            }
            b'I' | b'L' => {
                let line = self.line()?;
                match line.trim() {
                    "00" if code == b'I' => Node::Bool(false),
                    "01" if code == b'I' => Node::Bool(true),
                    digits => match digits.strip_suffix('L').unwrap_or(digits).parse() {
                        Ok(number) => Node::Int(number),
                        Err(_) => Node::Wide(Cow::Borrowed(digits.as_bytes())),
                    },
                }
            }
            _ => {
                let len = if code == 0x8a { self.byte()?.into() } else { self.length(4)? };
                let bytes = self.take(len)?;
                let mut wide = [if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 }; 8];
                if bytes.len() <= 8 {
                    wide[..bytes.len()].copy_from_slice(bytes);
                    Node::Int(i64::from_le_bytes(wide))
                } else {
                    Node::Wide(Cow::Borrowed(bytes))
                }
            }
        };
        self.push(node)
    }

    fn string(&mut self, code: u8) -> Step {
        let node = match code {
            b'V' => Node::Text(Cow::Owned(self.raw_unicode()?)),
            b'S' => {
                let line = self.line()?.trim();
                let inner = line
                    .strip_prefix('\'')
                    .and_then(|line| line.strip_suffix('\''))
                    .or_else(|| line.strip_prefix('"').and_then(|line| line.strip_suffix('"')))
                    .ok_or_else(|| self.error("text without quotes"))?;
                if inner.contains('\\') {
                    return Err(
                        self.error("text with escapes, of a Python that nobody runs, is not known here")
                    );
                }
                Node::Text(Cow::Borrowed(inner))
            }
            _ => {
                let len = match code {
                    b'U' | 0x8c | b'C' => self.byte()?.into(),
                    b'T' | b'X' | b'B' => self.length(4)?,
                    _ => self.length(8)?,
                };
                let bytes = self.take(len)?;
                if matches!(code, b'X' | 0x8c | 0x8d | b'U' | b'T') {
                    Node::Text(Cow::Borrowed(
                        std::str::from_utf8(bytes).map_err(|_| self.error("text that is not UTF-8"))?,
                    ))
                } else {
                    Node::Bytes(Cow::Borrowed(bytes))
                }
            }
        };
        self.push(node)
    }

    fn container(&mut self, code: u8) -> Step {
        match code {
            b')' => self.push(Node::Tuple(Vec::new())),
            0x85..=0x87 => {
                let from = self.below((code - 0x84).into())?;
                let items = self.stack.split_off(from);
                self.push(Node::Tuple(items))
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items))
            }
            b']' => self.push(Node::List(Vec::new())),
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))
            }
            0x8f => self.push(Node::Set(Vec::new())),
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::Set(items))
            }
            b'}' => self.push(Node::Dict(Vec::new())),
            b'd' => {
                let items = self.pop_mark()?;
                let pairs = self.pairs(&items)?;
                self.push(Node::Dict(pairs))
            }
            b'a' | b'e' | 0x90 => {
                let items = if code == b'a' { vec![self.pop()?] } else { self.pop_mark()? };
                match self.top()? {
                    Node::List(list) | Node::Set(list) => list.extend(items),
                    Node::Object(object) => object.items.extend(items),
                    _ => return Err(self.error("something is appended to what is no list")),
                }
                Ok(())
            }
            _ => {
                let pairs = if code == b's' {
                    let (value, key) = (self.pop()?, self.pop()?);
                    vec![(key, value)]
                } else {
                    let items = self.pop_mark()?;
                    self.pairs(&items)?
                };
                match self.top()? {
                    Node::Dict(entries) => entries.extend(pairs),
                    Node::Object(object) => object.entries.extend(pairs),
                    _ => return Err(self.error("something is entered into what is no dictionary")),
                }
                Ok(())
            }
        }
    }

    fn memo(&mut self, code: u8) -> Step {
        let is_get = matches!(code, b'g' | b'h' | b'j');
        let index = match code {
            b'g' | b'p' => self.line()?.trim().parse().map_err(|_| self.error("no number"))?,
            b'h' | b'q' => self.byte()?.into(),
            0x94 => self.memo.len(),
            _ => self.length(4)?,
        };
        if is_get {
            let id = self.memo.get(index).copied().flatten();
            self.stack
                .push(id.ok_or_else(|| self.error(format!("nothing is remembered as number {index}")))?);
            return Ok(());
        }
        // Whoever remembers something has written at least a byte for it.
        if index > self.bytes.len() {
            return Err(
                self.error(format!("number {index} to remember something by is more than there can be"))
            );
        }
        let top = *self.stack.last().ok_or_else(|| self.error("nothing to remember"))?;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    fn object(&mut self, code: u8) -> Step {
        match code {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(Cow::Borrowed(module), Cow::Borrowed(name))
            }
            0x93 => {
                let (name, module) = (self.pop_text()?, self.pop_text()?);
                self.push_global(module, name)
            }
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                let args = self.pop_mark()?;
                self.push_global(Cow::Borrowed(module), Cow::Borrowed(name))?;
                self.push(Node::Tuple(args))?;
                self.push_call()
            }
            b'o' => {
                let mut args = self.pop_mark()?;
                if args.is_empty() {
                    return Err(self.error("an object without a class"));
                }
                let class = args.remove(0);
                self.stack.push(class);
                self.push(Node::Tuple(args))?;
                self.push_call()
            }
            b'R' | 0x81 => self.push_call(),
            0x92 => {
                // Arguments by name are kept as the last of the others.
                let (names, args) = (self.pop()?, self.pop()?);
                self.push(Node::Tuple(vec![args, names]))?;
                self.push_call()
            }
            b'b' => {
                let state = self.pop()?;
                match self.top()? {
                    Node::Object(object) => object.state = Some(state),
                    _ => return Err(self.error("a state for what is no object")),
                }
                Ok(())
            }
            b'P' => {
                let line = self.line()?;
                self.push(Node::Text(Cow::Borrowed(line)))?;
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
            _ => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
        }
    }

    fn push_global(&mut self, module: Cow<'a, str>, name: Cow<'a, str>) -> Step {
        self.push(Node::Global(Box::new(Global { module, name })))
    }

    fn push_call(&mut self) -> Step {
        let (args, callable) = (self.pop()?, self.pop()?);
        let object = Object { callable, args, state: None, items: Vec::new(), entries: Vec::new() };
        self.push(Node::Object(Box::new(object)))
    }

    fn push(&mut self, node: Node<'a>) -> Step {
        if self.nodes.len() >= NODES_MAX {
            return Err(self.error(format!("more than {NODES_MAX} values")));
        }
        self.stack.push(self.nodes.len() as Id);
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Step<Id> {
        self.below(1)?;
        self.stack.pop().ok_or_else(|| self.error("it takes more values than there are"))
    }

    /// How high the stack is without so many values, all of which must lie above the last mark.
    fn below(&self, count: usize) -> Step<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count).filter(|from| *from >= floor);
        from.ok_or_else(|| self.error("it takes more values than there are"))
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.error("no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn pop_text(&mut self) -> Step<Cow<'a, str>> {
        let id = self.pop()?;
        match &self.nodes[id as usize] {
            Node::Text(Cow::Borrowed(text)) => Ok(Cow::Borrowed(text)),
            // Copies of a long one, a few bytes for each, would fill any memory. Protocols that name classes so write no such text.
            Node::Text(Cow::Owned(_)) => Err(self.error("the name of a class as text of protocol 0")),
            _ => Err(self.error("the name of a class that is no text")),
        }
    }

    fn top(&mut self) -> Step<&mut Node<'a>> {
        let from = self.below(1)?;
        Ok(&mut self.nodes[self.stack[from] as usize])
    }

    fn pairs(&self, items: &[Id]) -> Step<Vec<(Id, Id)>> {
        if !items.len().is_multiple_of(2) {
            return Err(self.error("a key without a value"));
        }
        Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn byte(&mut self) -> Step<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        self.take(N).map(|bytes| bytes.try_into().expect("so many were taken"))
    }

    fn length(&mut self, bytes: usize) -> Step<usize> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| self.error("a length that no memory has"))
    }

    fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        if len > rest.len() {
            return Err(self.error(format!("{len} bytes are announced and {} are left", rest.len())));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn line(&mut self) -> Step<&'a str> {
        let line = self.line_bytes()?;
        std::str::from_utf8(line).map_err(|_| self.error("text that is not UTF-8"))
    }

    fn line_bytes(&mut self) -> Step<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end =
            rest.iter().position(|&byte| byte == b'\n').ok_or_else(|| self.error("a line without an end"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    /// A line in Latin-1, with `\uXXXX` and `\UXXXXXXXX` for everything else.
    fn raw_unicode(&mut self) -> Step<String> {
        let line = self.line_bytes()?;
        let mut text = String::with_capacity(line.len());
        let mut at = 0;
        while at < line.len() {
            let digits = match (line[at], line.get(at + 1)) {
                (b'\\', Some(b'u')) => 4,
                (b'\\', Some(b'U')) => 8,
                _ => 0,
            };
            if digits == 0 {
                text.push(line[at].into());
                at += 1;
                continue;
            }
            let letter = line
                .get(at + 2..at + 2 + digits)
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .and_then(char::from_u32);
            text.push(letter.ok_or_else(|| self.error("a letter that does not exist"))?);
            at += 2 + digits;
        }
        Ok(text)
    }

    fn error(&self, reason: impl Into<String>) -> PickleError {
        PickleError { offset: self.begin, reason: reason.into() }
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

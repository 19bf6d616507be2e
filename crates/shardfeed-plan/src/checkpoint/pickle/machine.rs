use std::borrow::Cow;

use super::{Global, Id, Node, Object, Pickle, PickleError};

/// Values that any pickle may hold.
const VALUES_FREE: usize = 1 << 20;

/// Bytes that a pickle must have written for each value above those. A value takes some forty of memory, and a byte can be one: in the
/// metadata of checkpoints each takes nearly five.
const VALUE_BYTES_MIN: usize = 2;

/// Marks that may be open at a time.
const MARKS_MAX: usize = 1 << 20;

/// Does the operations of a pickle, one after another.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the operation that is being done begins, for errors.
    begin: usize,
    nodes: Vec<Node<'a>>,
    /// Where the operation began that made each.
    begins: Vec<u32>,
    stack: Vec<Id>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

type Step<T = ()> = Result<T, PickleError>;

impl<'a> Machine<'a> {
    /// The values that a pickle makes and where each begins, which of them holds the others, and how many bytes it took.
    pub(super) fn run(bytes: &'a [u8]) -> Step<Pickle<'a>> {
        let (nodes, begins, stack) = (Vec::new(), Vec::new(), Vec::new());
        let mut machine =
            Self { bytes, at: 0, begin: 0, nodes, begins, stack, marks: Vec::new(), memo: Vec::new() };
        loop {
            machine.begin = machine.at;
            let code = machine.byte()?;
            if code == b'.' {
                let root = machine.pop()?;
                let Self { nodes, begins, at: len, .. } = machine;
                return Ok(Pickle { nodes, begins, root, len });
            }
            machine.step(code)?;
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
                if self.marks.len() >= MARKS_MAX {
                    return Err(self.error(format!("more than {MARKS_MAX} values in each other")));
                }
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
                    Node::Text(text(bytes).ok_or_else(|| self.error("text that is not UTF-8"))?)
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
        // Writers number what they remember, from 0 or from 1 on, and remember each value once.
        if index > self.nodes.len() {
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
        if self.nodes.len() >= VALUES_FREE + self.at / VALUE_BYTES_MIN || self.nodes.len() >= Id::MAX as usize
        {
            return Err(self.error(format!(
                "{} values in {} bytes are more than metadata have; it means harm",
                self.nodes.len(),
                self.at
            )));
        }
        self.stack.push(self.nodes.len() as Id);
        self.nodes.push(node);
        // Of a pickle of more than four gigabytes, which nobody reads here, places further on are not told.
        self.begins.push(u32::try_from(self.begin).unwrap_or(u32::MAX));
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

/// Python writes text as UTF-8, and bytes of file names that are none as letters that do not exist (surrogates). They become U+FFFD: nothing that
/// is looked for has them, and a checkpoint may lie in such a place.
fn text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some(Cow::Borrowed(text));
    }
    let mut mended = bytes.to_vec();
    for at in 0..mended.len().saturating_sub(2) {
        // Only the first byte of a letter is 0xed.
        if let [0xed, 0xa0..=0xbf, 0x80..=0xbf] = mended[at..at + 3] {
            mended[at..at + 3].copy_from_slice("\u{fffd}".as_bytes());
        }
    }
    String::from_utf8(mended).ok().map(Cow::Owned)
}

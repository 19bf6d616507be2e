use std::fmt::{self, Write};

use super::{Id, Node, Pickle};

impl Pickle<'_> {
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

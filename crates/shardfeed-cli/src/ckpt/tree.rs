use std::collections::BTreeMap;

/// Levels of a tree.
const DEPTH_MAX: usize = 64;

/// Names with dots, as a tree: numbers in their order, and what has one branch only on one line.
pub struct Tree<T> {
    branches: BTreeMap<Part, Tree<T>>,
    leaf: Option<T>,
}

/// A part of a name. Numbers are numbers: `layers.10` comes after `layers.9`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64, String),
    Text(String),
}

/// A line of the tree.
pub struct Line<'a, T> {
    /// The name with what leads to it, to be printed.
    pub text: String,
    /// What is there, or everything below if the tree is cut off here.
    pub leaves: Vec<&'a T>,
    /// Whether there is more below that is not shown.
    pub is_cut: bool,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { branches: BTreeMap::new(), leaf: None }
    }
}

impl<T> Tree<T> {
    pub fn insert(&mut self, name: &str, leaf: T) {
        let mut tree = self;
        // What is deeper than anybody nests is one part: trees that deep end a program that walks them.
        for part in name.splitn(DEPTH_MAX, '.') {
            let part = match part.parse() {
                Ok(number) => Part::Number(number, part.to_owned()),
                Err(_) => Part::Text(part.to_owned()),
            };
            tree = tree.branches.entry(part).or_default();
        }
        tree.leaf = Some(leaf);
    }

    /// Lines down to a depth.
    pub fn lines(&self, depth_max: usize) -> Vec<Line<'_, T>> {
        let mut lines = Vec::new();
        self.add_lines("", depth_max, &mut lines);
        lines
    }

    fn add_lines<'a>(&'a self, lead: &str, depth_left: usize, lines: &mut Vec<Line<'a, T>>) {
        let count = self.branches.len();
        for (index, (part, tree)) in self.branches.iter().enumerate() {
            let is_last = index + 1 == count;
            let (mut name, mut tree) = (part.text().to_owned(), tree);
            while let (1, None) = (tree.branches.len(), &tree.leaf) {
                let Some((part, next)) = tree.branches.first_key_value() else { break };
                name.push('.');
                name.push_str(part.text());
                tree = next;
            }
            let is_cut = depth_left <= 1 && !tree.branches.is_empty();
            let leaves = if is_cut { tree.all() } else { tree.leaf.iter().collect() };
            lines.push(Line {
                text: format!("{lead}{} {name}", if is_last { "└─" } else { "├─" }),
                leaves,
                is_cut,
            });
            if !is_cut {
                tree.add_lines(
                    &format!("{lead}{}  ", if is_last { " " } else { "│" }),
                    depth_left - 1,
                    lines,
                );
            }
        }
    }

    fn all(&self) -> Vec<&T> {
        self.leaf.iter().chain(self.branches.values().flat_map(Self::all)).collect()
    }
}

impl Part {
    fn text(&self) -> &str {
        match self {
            Self::Number(_, text) | Self::Text(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_order_and_lonely_branches_on_one_line() {
        let mut tree = Tree::default();
        for name in ["model.layers.10.w", "model.layers.9.w", "model.layers.9.b", "step", "model.norm"] {
            tree.insert(name, name);
        }
        let text = |depth| tree.lines(depth).iter().map(|line| line.text.clone()).collect::<Vec<_>>();
        let whole = [
            "├─ model",
            "│  ├─ layers",
            "│  │  ├─ 9",
            "│  │  │  ├─ b",
            "│  │  │  └─ w",
            "│  │  └─ 10.w",
            "│  └─ norm",
            "└─ step",
        ];
        assert_eq!(text(9), whole);
        assert_eq!(text(2), ["├─ model", "│  ├─ layers", "│  └─ norm", "└─ step"]);
        assert_eq!(tree.lines(1)[0].leaves.len(), 4);
    }
}

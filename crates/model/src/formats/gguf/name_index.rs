//! Finding things by name: a sorted permutation, so no hashing that a hostile file could attack and no copies of names.

/// The positions of a list's items, in the order of their names.
#[derive(Debug)]
pub(super) struct NameIndex {
    order: Vec<u32>,
}

/// Two items of the list that have the same name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    pub first: usize,
    pub second: usize,
}

impl NameIndex {
    pub fn new<T>(items: &[T], name: impl Fn(&T) -> &str) -> Result<Self, Duplicate> {
        let count = u32::try_from(items.len()).expect("the readers limit their lists to far fewer");
        let name_at = |position: u32| name(&items[position as usize]);
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_by(|a, b| name_at(*a).cmp(name_at(*b)));
        // The sort is stable, so of two equal names the first in the file comes first.
        match order.windows(2).find(|pair| name_at(pair[0]) == name_at(pair[1])) {
            Some(pair) => Err(Duplicate { first: pair[0] as usize, second: pair[1] as usize }),
            None => Ok(Self { order }),
        }
    }

    /// `items` and `name` must be those the index was made from.
    pub fn find<'a, T>(&self, items: &'a [T], name: impl Fn(&T) -> &str, wanted: &str) -> Option<&'a T> {
        Some(&items[self.position(items, name, wanted)?])
    }

    /// The same for the position in the list.
    pub fn position<T>(&self, items: &[T], name: impl Fn(&T) -> &str, wanted: &str) -> Option<usize> {
        let found = self.order.binary_search_by(|position| name(&items[*position as usize]).cmp(wanted)).ok()?;
        Some(self.order[found] as usize)
    }
}

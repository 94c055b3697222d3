//! Receives that wait for a message.

use crate::index::{CLASSES_MAX, Class, Index};
use crate::ordered::Ordered;
use crate::slab::PeerId;

/// The longest queue that is walked through. A longer one has an index.
pub const LINEAR_MAX: usize = 64;

/// What a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The source, or `None` for any.
    pub source: Option<PeerId>,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that are not compared.
    pub ignore: u64,
}

impl Selector {
    /// Does a receive with this selector take a message from `source` with `tag`?
    #[inline]
    pub fn matches(&self, source: PeerId, tag: u64) -> bool {
        self.source.is_none_or(|wanted| wanted == source) && (self.tag ^ tag) & !self.ignore == 0
    }

    pub(crate) fn class(&self) -> Class {
        Class { is_any_source: self.source.is_none(), ignore: self.ignore }
    }

    fn key(&self) -> (u64, u64) {
        self.class().key(self.source.map_or(0, |source| source.0), self.tag)
    }
}

/// A receive that waits.
#[derive(Debug)]
pub struct PostedReceive<R> {
    /// What it takes.
    pub selector: Selector,
    /// The program's handle.
    pub receive: R,
}

/// The class number of receives that the index has no class for. They share a key.
const OTHERS: (usize, (u64, u64)) = (CLASSES_MAX, (0, 0));

/// Receives in the order in which they were posted.
#[derive(Debug)]
pub struct Posted<R> {
    receives: Ordered<PostedReceive<R>>,
    /// There while the queue is long.
    index: Option<Box<Index>>,
    examined: u64,
}

impl<R> Default for Posted<R> {
    fn default() -> Self {
        Self { receives: Ordered::new(), index: None, examined: 0 }
    }
}

impl<R> Posted<R> {
    /// The number of receives.
    pub fn len(&self) -> usize {
        self.receives.len()
    }

    /// Is there no receive?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many receives and rows of the index all searches together have looked at.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Adds a receive with the handle that `make` makes, and returns its number.
    #[inline(always)]
    pub fn push(&mut self, selector: Selector, make: impl FnOnce() -> R) -> u64 {
        let number = self.receives.push(|| PostedReceive { selector, receive: make() });
        if self.receives.len() > LINEAR_MAX || self.index.is_some() {
            self.add_to_index(selector, number);
        }
        number
    }

    #[inline(never)]
    fn add_to_index(&mut self, selector: Selector, number: u64) {
        if let Some(index) = &mut self.index {
            insert(index, &selector, number);
        } else {
            let mut index = Box::<Index>::default();
            self.receives.iter().for_each(|(number, posted)| insert(&mut index, &posted.selector, number));
            self.index = Some(index);
        }
    }

    /// Removes the first receive that takes a message from `source` with `tag`.
    ///
    /// A search looks at [`LINEAR_MAX`] receives at most, or at a row of each of [`CLASSES_MAX`] classes, and
    /// then at the receives of further classes.
    pub fn take(&mut self, source: PeerId, tag: u64) -> Option<R> {
        let place = self.find(source, tag)?;
        self.remove_at(place)
    }

    /// The place of that receive. It holds until a receive is removed.
    #[inline(always)]
    pub(crate) fn find(&mut self, source: PeerId, tag: u64) -> Option<usize> {
        if self.index.is_some() {
            return self.find_indexed(source, tag);
        }
        let examined = &mut self.examined;
        self.receives.find(|posted| {
            *examined += 1;
            posted.selector.matches(source, tag)
        })
    }

    #[inline(never)]
    fn find_indexed(&mut self, source: PeerId, tag: u64) -> Option<usize> {
        let index = self.index.as_ref()?;
        let mut best = None;
        for (class, open) in index.classes() {
            self.examined += 1;
            let first = index.numbers(class, open.key(source.0, tag)).next();
            best = [best, first].into_iter().flatten().min();
        }
        for number in index.numbers(OTHERS.0, OTHERS.1) {
            self.examined += 1;
            if best.is_some_and(|best| best < number) {
                break;
            }
            if self.receives.get(number).is_some_and(|posted| posted.selector.matches(source, tag)) {
                best = Some(number);
            }
        }
        self.receives.place(best?)
    }

    /// The receive at a place.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut R> {
        self.receives.at_mut(place).map(|posted| &mut posted.receive)
    }

    /// Removes the receive at a place, and drops it.
    #[inline(always)]
    pub(crate) fn release(&mut self, place: usize) {
        if self.index.is_none() {
            self.receives.release(place);
        } else {
            drop(self.remove_at(place));
        }
    }

    /// Removes the first receive whose handle is wanted.
    pub fn remove_first(&mut self, is_wanted: impl Fn(&R) -> bool) -> Option<R> {
        let number = self.receives.iter().find(|(_, posted)| is_wanted(&posted.receive))?.0;
        self.remove(number)
    }

    /// Removes a receive by its number.
    pub fn remove(&mut self, number: u64) -> Option<R> {
        let place = self.receives.place(number)?;
        self.remove_at(place)
    }

    /// Removes the receive at a place.
    pub(crate) fn remove_at(&mut self, place: usize) -> Option<R> {
        let (number, posted) = self.receives.take(place)?;
        if self.receives.len() < LINEAR_MAX / 2 {
            self.index = None;
        } else if let Some(index) = &mut self.index {
            match index.class(posted.selector.class()) {
                Some(class) => index.remove(class, posted.selector.key(), number),
                None => index.remove(OTHERS.0, OTHERS.1, number),
            }
        }
        Some(posted.receive)
    }

    /// Removes the receives that name a source.
    pub fn take_all_from(&mut self, source: PeerId) -> Vec<R> {
        let named = self.receives.iter().filter(|(_, posted)| posted.selector.source == Some(source));
        let numbers: Vec<u64> = named.map(|(number, _)| number).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

fn insert(index: &mut Index, selector: &Selector, number: u64) {
    let class = index.class(selector.class()).or_else(|| index.learn(selector.class()));
    match class {
        Some(class) => index.insert(class, selector.key(), number),
        None => index.insert(OTHERS.0, OTHERS.1, number),
    }
}

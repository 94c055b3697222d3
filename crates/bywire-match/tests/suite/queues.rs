//! The queues of receives and messages match as a list does that is walked through. A search in a long one looks at a
//! bounded number of entries.

use bywire_match::{
    CLASSES_MAX, Content, Endpoint, Envelope, LINEAR_MAX, Limits, Message, PeerId, Posted, Selector, Sink,
    Unexpected,
};
use proptest::collection::vec;
use proptest::prelude::*;

struct NoBuffer;

impl Sink for NoBuffer {
    fn capacity(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}
}

fn peers() -> [PeerId; 4] {
    let mut endpoint: Endpoint<(), NoBuffer> = Endpoint::new(Limits::default());
    std::array::from_fn(|_| endpoint.add_peer().expect("room for four"))
}

/// Few tags and masks, so that much matches, and more classes than an index has.
fn selector() -> impl Strategy<Value = Selector> {
    let masks = prop_oneof![4 => Just(0), 4 => Just(1 << 63), 1 => 0..16u64, 1 => Just(u64::MAX)];
    (prop::option::of(0..4usize), 0..8u64, masks).prop_map(|(source, tag, ignore)| Selector {
        source: source.map(|index| peers()[index]),
        tag,
        ignore,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Add(Selector, usize, u64),
    Match(Selector, usize, u64),
    Remove(usize),
    RemoveSource(usize),
}

/// Queues grow beyond the length from which on they have an index, and shrink again.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let phase = |adds: u32, matches: u32, most: usize| {
        let step = prop_oneof![
            adds => (selector(), 0..4usize, 0..8u64).prop_map(|(selector, source, tag)| Step::Add(selector, source, tag)),
            matches => (selector(), 0..4usize, 0..8u64).prop_map(|(selector, source, tag)| Step::Match(selector, source, tag)),
            1 => (0..300usize).prop_map(Step::Remove),
        ];
        vec(step, 0..most)
    };
    let end = (0..4usize).prop_map(|source| vec![Step::RemoveSource(source)]);
    (phase(20, 2, 300), phase(5, 5, 100), end, phase(2, 20, 300))
        .prop_map(|(grow, stay, end, shrink)| [grow, stay, end, shrink].concat())
}

fn message(source: usize, tag: u64, data: u64) -> Message {
    let envelope = Envelope { source: peers()[source], tag, data: Some(data), length: 0 };
    Message { envelope, content: Content::Request { send: data } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_first_posted_receive_takes_a_message(steps in steps()) {
        let (mut posted, mut model) = (Posted::default(), Vec::<(u64, Selector, usize)>::new());
        for (name, step) in steps.into_iter().enumerate() {
            match step {
                Step::Add(selector, ..) => {
                    let number = posted.push(selector, || name);
                    prop_assert!(model.iter().all(|(other, ..)| *other < number));
                    model.push((number, selector, name));
                }
                Step::Match(_, source, tag) => {
                    let place = model.iter().position(|(_, selector, _)| selector.matches(peers()[source], tag));
                    prop_assert_eq!(posted.take(peers()[source], tag), place.map(|place| model.remove(place).2));
                }
                Step::Remove(place) => {
                    let Some((number, _, name)) = model.get(place).copied() else { continue };
                    model.remove(place);
                    prop_assert_eq!((posted.remove(number), posted.remove(number)), (Some(name), None));
                }
                Step::RemoveSource(source) => {
                    let named = |selector: &Selector| selector.source == Some(peers()[source]);
                    let gone: Vec<usize> =
                        model.iter().filter(|(_, selector, _)| named(selector)).map(|(_, _, name)| *name).collect();
                    model.retain(|(_, selector, _)| !named(selector));
                    prop_assert_eq!(posted.take_all_from(peers()[source]), gone);
                }
            }
            prop_assert_eq!((posted.len(), posted.is_empty()), (model.len(), model.is_empty()));
        }
    }

    #[test]
    fn a_receive_finds_the_first_message_that_arrived(steps in steps()) {
        let (mut unexpected, mut model) = (Unexpected::default(), Vec::<(u64, usize, u64, u64)>::new());
        for (name, step) in steps.into_iter().enumerate() {
            match step {
                Step::Add(_, source, tag) => {
                    let number = unexpected.push(message(source, tag, name as u64));
                    model.push((number, source, tag, name as u64));
                }
                Step::Match(selector, ..) => {
                    let fits = |(_, source, tag, _): &(u64, usize, u64, u64)| selector.matches(peers()[*source], *tag);
                    let place = model.iter().position(fits);
                    let found = unexpected.find(&selector);
                    prop_assert_eq!(found, place.map(|place| model[place].0));
                    let (Some(place), Some(number)) = (place, found) else { continue };
                    let (_, source, tag, name) = model.remove(place);
                    let expected = message(source, tag, name);
                    prop_assert_eq!(unexpected.get(number), Some(&expected));
                    prop_assert_eq!(unexpected.remove(number), Some(expected));
                    prop_assert_eq!(unexpected.remove(number), None);
                }
                Step::Remove(place) => {
                    let Some((number, ..)) = model.get(place).copied() else { continue };
                    model.remove(place);
                    prop_assert!(unexpected.remove(number).is_some());
                }
                Step::RemoveSource(source) => {
                    let gone: Vec<u64> =
                        model.iter().filter(|message| message.1 == source).map(|message| message.0).collect();
                    model.retain(|message| message.1 != source);
                    prop_assert_eq!(unexpected.numbers(|message| message.envelope.source == peers()[source]), gone.clone());
                    gone.into_iter().for_each(|number| drop(unexpected.remove(number)));
                }
            }
            prop_assert_eq!((unexpected.len(), unexpected.is_empty()), (model.len(), model.is_empty()));
        }
    }
}

/// The most that one search looks at, besides receives of classes that have no room in the index.
const EXAMINED_MAX: u64 = CLASSES_MAX as u64;

#[test]
fn a_search_through_100_000_receives_looks_at_a_row_of_each_class() {
    let source = peers()[0];
    let mut posted = Posted::default();
    // As MPI libraries post them: exact sources and any, each with the library's own bits ignored.
    for tag in 0..100_000u64 {
        let source = (tag % 10 != 0).then_some(source);
        posted.push(Selector { source, tag, ignore: 1 << 62 }, || tag);
    }
    for tag in (0..100_000).rev() {
        let before = posted.examined();
        assert_eq!(posted.take(source, tag | 1 << 62), Some(tag));
        let most = if posted.len() < LINEAR_MAX { LINEAR_MAX as u64 } else { EXAMINED_MAX };
        assert!(
            posted.examined() - before <= most,
            "{} receives: {}",
            posted.len(),
            posted.examined() - before
        );
    }
}

#[test]
fn a_short_queue_of_receives_costs_one_look_for_its_first() {
    let mut posted = Posted::default();
    for _ in 0..1_000 {
        posted.push(Selector { source: None, tag: 1, ignore: 0 }, || ());
        assert_eq!(posted.take(peers()[1], 1), Some(()));
    }
    assert_eq!(posted.examined(), 1_000);
}

#[test]
fn a_search_through_100_000_messages_looks_at_one_row() {
    let mut unexpected = Unexpected::default();
    for tag in 0..100_000 {
        unexpected.push(message(2, tag, tag));
    }
    let selector =
        |tag: u64| Selector { source: (!tag.is_multiple_of(2)).then(|| peers()[2]), tag, ignore: 1 << 62 };
    // Two classes are new once.
    (0..2).for_each(|tag| assert!(unexpected.find(&selector(tag)).is_some()));
    let learned = unexpected.examined();
    assert!(learned <= 2 * 100_000 + 2);
    for tag in (0..100_000).rev() {
        let before = unexpected.examined();
        let number = unexpected.find(&selector(tag)).expect("it is there");
        let most = if unexpected.len() <= LINEAR_MAX { LINEAR_MAX as u64 } else { 1 };
        assert!(unexpected.examined() - before <= most, "{} messages", unexpected.len());
        assert_eq!(unexpected.find(&selector(tag + 200_000)), None);
        assert_eq!(unexpected.remove(number), Some(message(2, tag, tag)));
    }
}

#[test]
fn receives_beyond_the_classes_of_an_index_are_found_in_order() {
    let source = peers()[0];
    let mut posted = Posted::default();
    // Every receive is a class of its own, and every one takes a message with tag 0.
    for bits in 0..1_000u64 {
        posted.push(Selector { source: Some(source), tag: bits, ignore: bits }, || bits);
    }
    (0..1_000).for_each(|bits| assert_eq!(posted.take(source, 0), Some(bits)));
    assert_eq!(posted.take(source, 0), None);
}

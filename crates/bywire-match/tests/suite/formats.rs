//! Heads of tagged messages and of RMA are read as they were written, and from any bytes.

use bywire_match::head::{HEAD_BYTES_MAX, Head, LENGTH_MAX, Malformed};
use bywire_match::rma::{Denied, head as rma};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Short and long words.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..10u64, Just(u64::from(u32::MAX)), Just(1 << 32)]
}

fn head() -> impl Strategy<Value = Head> {
    let length = || prop_oneof![0..=LENGTH_MAX, Just(LENGTH_MAX)];
    prop_oneof![
        (word(), option::of(word()), option::of(word())).prop_map(|(tag, data, synchronous)| Head::Eager {
            tag,
            data,
            synchronous
        }),
        (word(), option::of(word()), word(), length()).prop_map(|(tag, data, send, length)| Head::Request {
            tag,
            data,
            send,
            length
        }),
        (word(), word(), length(), option::of(word())).prop_map(|(send, receive, length, key)| Head::Grant {
            send,
            receive,
            length,
            key
        }),
        word().prop_map(|receive| Head::Piece { receive }),
        word().prop_map(|send| Head::Acknowledgement { send }),
        length().prop_map(|bytes| Head::Credit { bytes }),
    ]
}

fn rma_head() -> impl Strategy<Value = rma::Head> {
    let length = || prop_oneof![0..=LENGTH_MAX, Just(LENGTH_MAX)];
    let reason = prop_oneof![Just(Denied::NoMemory), Just(Denied::OutOfBounds), Just(Denied::NoRight)];
    prop_oneof![
        (word(), word(), option::of(word())).prop_map(|(key, offset, data)| rma::Head::Write {
            key,
            offset,
            data
        }),
        (word(), word(), word(), length(), option::of(word())).prop_map(
            |(operation, key, offset, length, data)| rma::Head::Request {
                operation,
                key,
                offset,
                length,
                data
            }
        ),
        (word(), word(), option::of(word())).prop_map(|(operation, access, region)| rma::Head::Grant {
            operation,
            access,
            region
        }),
        word().prop_map(|access| rma::Head::Piece { access }),
        word().prop_map(|operation| rma::Head::Written { operation }),
        (word(), word(), word(), length(), option::of(word())).prop_map(
            |(operation, key, offset, length, region)| rma::Head::Read {
                operation,
                key,
                offset,
                length,
                region
            }
        ),
        word().prop_map(|operation| rma::Head::Data { operation }),
        word().prop_map(|writes| rma::Head::Done { writes }),
        (option::of(word()), reason).prop_map(|(operation, reason)| rma::Head::Refusal { operation, reason }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_head_is_read_as_it_was_written(head in head(), payload in vec(any::<u8>(), 0..50)) {
        let bytes = head.to_bytes();
        prop_assert!(bytes.len() <= HEAD_BYTES_MAX);
        let has_payload = matches!(head, Head::Eager { .. } | Head::Piece { .. });
        let frame = [&bytes[..], &payload[..]].concat();
        let expected = if has_payload || payload.is_empty() { Ok((head, &payload[..])) } else { Err(Malformed) };
        prop_assert_eq!(Head::parse(&frame), expected);
        for length in 0..bytes.len() {
            prop_assert_eq!(Head::parse(&bytes[..length]), Err(Malformed), "{} bytes", length);
        }
    }

    #[test]
    fn a_head_of_rma_is_read_as_it_was_written(head in rma_head(), payload in vec(any::<u8>(), 0..50)) {
        let bytes = head.to_bytes();
        prop_assert!(bytes.len() <= rma::HEAD_BYTES_MAX);
        let has_payload =
            matches!(head, rma::Head::Write { .. } | rma::Head::Piece { .. } | rma::Head::Data { .. });
        let frame = [&bytes[..], &payload[..]].concat();
        let expected = if has_payload || payload.is_empty() { Ok((head, &payload[..])) } else { Err(Malformed) };
        prop_assert_eq!(rma::Head::parse(&frame), expected);
        for length in 0..bytes.len() {
            prop_assert_eq!(rma::Head::parse(&bytes[..length]), Err(Malformed), "{} bytes", length);
        }
    }

    #[test]
    fn any_bytes_are_a_head_of_rma_in_its_only_form_or_malformed(
        kind in 0..12u8, flags in prop_oneof![0..16u8, any::<u8>()], mut bytes in vec(prop_oneof![Just(0), any::<u8>()], 0..60),
    ) {
        for (byte, value) in bytes.iter_mut().zip([kind, flags, 0, 0]) {
            *byte = value;
        }
        if let Ok((head, payload)) = rma::Head::parse(&bytes) {
            prop_assert_eq!([&head.to_bytes()[..], payload].concat(), bytes);
        }
    }

    /// Bytes that are nearly a head: each valid one has one form only.
    #[test]
    fn any_bytes_are_a_head_in_its_only_form_or_malformed(
        kind in 0..8u8, flags in prop_oneof![0..16u8, any::<u8>()], mut bytes in vec(prop_oneof![Just(0), any::<u8>()], 0..60),
    ) {
        for (byte, value) in bytes.iter_mut().zip([kind, flags, 0, 0]) {
            *byte = value;
        }
        if let Ok((head, payload)) = Head::parse(&bytes) {
            prop_assert_eq!([&head.to_bytes()[..], payload].concat(), bytes);
        }
    }
}

#[test]
fn a_message_of_40_bytes_with_a_short_word_of_data_fits_into_a_slot_of_56() {
    let head = Head::Eager { tag: u64::MAX, data: Some(u32::MAX.into()), synchronous: None };
    assert_eq!(head.to_bytes().len() + 40, 56);
}

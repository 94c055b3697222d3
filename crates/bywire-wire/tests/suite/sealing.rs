//! Only the right key opens the right packet, and keys follow each other when packets are reordered.

use bywire_wire::keys::{Secret, Security, Side};
use bywire_wire::packet::{HEADER_BYTES, Header, PacketKind};
use bywire_wire::sealing::{KEY_LIFE_NS, Opener, Sealer};
use proptest::prelude::*;

const ALL: [Security; 3] = [Security::Plain, Security::Aes256Gcm, Security::ChaCha20Poly1305];
const SECRET: [u8; 32] = [7; 32];
const TIMEOUT_NS: u64 = 1_000_000;

fn seal(sealer: &mut Sealer, security: Security, now_ns: u64, number: u64, frames: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + frames.len() + security.tag_bytes()) as u16;
    let header = Header { kind: PacketKind::Data, key_phase: sealer.phase(), length, connection: 3, number };
    let mut packet = b"before".to_vec();
    packet.extend(header.to_bytes());
    packet.extend(frames);
    sealer.seal(now_ns, number, &mut packet, 6);
    packet.split_off(6)
}

fn open(opener: &mut Opener, now_ns: u64, packet: &[u8]) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    let header = Header::parse(&packet)?;
    opener.open(now_ns, TIMEOUT_NS, &header, &mut packet).ok().map(<[u8]>::to_vec)
}

fn pair(security: Security) -> (Sealer, Opener) {
    (
        Sealer::new(security, &SECRET.into(), Side::Initiator),
        Opener::new(security, &SECRET.into(), Side::Initiator),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn only_an_intact_sealed_packet_opens(
        frames in prop::collection::vec(any::<u8>(), 0..200), number: u64, place: prop::sample::Index, bit in 0..8u8,
    ) {
        for security in ALL {
            let (mut sealer, mut opener) = pair(security);
            let packet = seal(&mut sealer, security, 0, number, &frames);
            prop_assert_eq!(open(&mut opener, 0, &packet), Some(frames.clone()));
            let is_hidden = security == Security::Plain || frames.len() < 8 || !packet.windows(frames.len()).any(|part| part == frames);
            prop_assert!(is_hidden, "the frames can be read");
            let mut damaged = packet.clone();
            let place = place.index(damaged.len());
            damaged[place] ^= 1 << bit;
            prop_assert_eq!(open(&mut opener, 0, &damaged), None, "{:?}", security);
        }
    }
}

#[test]
fn only_the_other_end_of_the_same_connection_opens() {
    for security in ALL {
        let mut sealer = Sealer::new(security, &SECRET.into(), Side::Initiator);
        let packet = seal(&mut sealer, security, 0, 1, b"frames");
        let reflected = Opener::new(security, &SECRET.into(), Side::Responder);
        let stranger = Opener::new(security, &[8; 32].into(), Side::Initiator);
        let others = ALL.into_iter().filter(|other| *other != security);
        let others = others.map(|other| Opener::new(other, &SECRET.into(), Side::Initiator));
        for mut opener in [reflected, stranger].into_iter().chain(others) {
            assert_eq!(open(&mut opener, 0, &packet), None, "{security:?}");
        }
    }
}

#[test]
fn after_a_key_update_the_old_key_opens_for_three_timeouts() {
    for security in [Security::Aes256Gcm, Security::ChaCha20Poly1305] {
        let (mut sealer, mut opener) = pair(security);
        sealer.set_packets_per_key(2);
        let old: Vec<_> = (0..4).map(|number| seal(&mut sealer, security, 0, number, b"old")).collect();
        assert!(open(&mut opener, 0, &old[0]).is_some());
        assert!(!sealer.update(TIMEOUT_NS * 100, TIMEOUT_NS), "the peer may not have this key yet");
        sealer.acknowledged(0, 0);
        assert!(!sealer.update(TIMEOUT_NS, TIMEOUT_NS), "the peer may still have the previous key");
        assert!(sealer.update(4 * TIMEOUT_NS, TIMEOUT_NS));
        let new: Vec<_> = (4..7).map(|number| seal(&mut sealer, security, 0, number, b"new")).collect();
        assert_eq!(open(&mut opener, 10, &new[1]), Some(b"new".to_vec()));
        assert_eq!(open(&mut opener, 10, &old[1]), Some(b"old".to_vec()), "a delayed packet still opens");
        assert_eq!(open(&mut opener, 10, &new[0]), Some(b"new".to_vec()));
        assert_eq!(open(&mut opener, 10 + 3 * TIMEOUT_NS, &old[2]), None, "the old key is gone");
        assert!(!sealer.update(u64::MAX, TIMEOUT_NS), "not before the peer is known to have the new key");
        assert_eq!(open(&mut opener, 10 + 3 * TIMEOUT_NS, &new[2]), Some(b"new".to_vec()));
    }
}

#[test]
fn a_key_lives_for_an_hour_and_an_integrity_check_forever() {
    for security in ALL {
        let (mut sealer, _) = pair(security);
        seal(&mut sealer, security, 5, 0, b"frames");
        sealer.acknowledged(6, 0);
        assert!(!sealer.update(KEY_LIFE_NS, TIMEOUT_NS));
        assert_eq!(sealer.update(KEY_LIFE_NS + 5, TIMEOUT_NS), security != Security::Plain);
        assert_eq!(sealer.phase(), security != Security::Plain);
    }
}

#[test]
fn packets_too_short_for_a_tag_count_as_forged() {
    for security in ALL {
        let (_, mut opener) = pair(security);
        for length in 0..HEADER_BYTES + security.tag_bytes() {
            let header = Header {
                kind: PacketKind::Data,
                key_phase: false,
                length: length as u16,
                connection: 3,
                number: 0,
            };
            assert!(
                opener.open(0, TIMEOUT_NS, &header, &mut vec![0; length]).is_err(),
                "{security:?} {length}"
            );
        }
    }
}

#[test]
fn a_secret_is_not_printed_and_its_source_is_erased() {
    let mut bytes = SECRET;
    let secret = Secret::take(&mut bytes);
    assert_eq!((bytes, format!("{secret:?}").as_str()), ([0; 32], "Secret(..)"));
    let packet = seal(&mut Sealer::new(ALL[0], &secret, Side::Initiator), ALL[0], 0, 0, b"frames");
    assert!(open(&mut pair(ALL[0]).1, 0, &packet).is_some(), "a copy has the same secret");
}

#[test]
fn no_number_is_sealed_twice_not_even_under_two_keys() {
    for security in ALL {
        for again in [0, 4, 5] {
            let (mut sealer, _) = pair(security);
            sealer.set_packets_per_key(1);
            seal(&mut sealer, security, 0, 5, b"frames");
            sealer.acknowledged(0, 5);
            sealer.update(TIMEOUT_NS * 100, TIMEOUT_NS);
            let sealed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                seal(&mut sealer, security, 0, again, b"others")
            }));
            assert!(sealed.is_err(), "{security:?}: number {again} was sealed after 5");
        }
    }
}

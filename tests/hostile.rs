//! Bytes that nobody meant to send: decoding never panics, and whatever it accepts has one spelling only.

mod samples;

use proptest::prelude::*;
use samples::*;
use tiebreak::limits::MESSAGE_BYTES_MAX;
use tiebreak::message::Reply;
use tiebreak::testing::wire::{self, WireError};

/// Decodes as everything there is.
fn throw(bytes: &[u8]) {
    if let Ok((from, request)) = wire::decode_request(bytes) {
        assert_eq!(wire::encode_request(&from, &request), bytes);
    }
    if let Ok((from, reply)) = wire::decode_reply(bytes) {
        assert_eq!(wire::encode_reply(&from, &reply), bytes);
    }
    if let Ok(record) = wire::decode_record(bytes) {
        assert_eq!(wire::encode_record(&record), bytes);
    }
}

/// The bytes of all samples.
fn all_bytes() -> Vec<Vec<u8>> {
    let requests = requests().into_iter().map(|request| wire::encode_request(&sender(), &request));
    let replies = replies().into_iter().map(|reply| wire::encode_reply(&sender(), &reply));
    let records = records().into_iter().map(|record| wire::encode_record(&record));
    requests.chain(replies).chain(records).collect()
}

fn messages() -> Vec<Vec<u8>> {
    all_bytes().into_iter().take(requests().len() + replies().len()).collect()
}

#[test]
fn every_truncation_is_refused_or_has_one_spelling() {
    for bytes in all_bytes() {
        for end in 0..bytes.len() {
            throw(&bytes[..end]);
        }
    }
    for request in requests() {
        let bytes = wire::encode_request(&sender(), &request);
        for end in 0..bytes.len() {
            assert_eq!(wire::decode_request(&bytes[..end]), Err(WireError::Truncated));
        }
    }
}

#[test]
fn every_flipped_bit_and_every_changed_byte_is_refused_or_has_one_spelling() {
    for bytes in all_bytes() {
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            throw(&changed);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                throw(&changed);
            }
        }
    }
}

#[test]
fn trailing_bytes_are_refused() {
    // Not behind the bytes of another kind: those may be the beginning of a longer one.
    let (request, reply) = (requests().len(), replies().len());
    for (at, mut bytes) in all_bytes().into_iter().enumerate() {
        for more in 1..40 {
            bytes.push(0);
            let refused = Some(WireError::Trailing { bytes: more });
            if at < request {
                assert_eq!(wire::decode_request(&bytes).err(), refused);
            } else if at < request + reply {
                assert_eq!(wire::decode_reply(&bytes).err(), refused);
            } else {
                assert_eq!(wire::decode_record(&bytes).err(), refused);
            }
        }
    }
}

#[test]
fn windows_of_huge_numbers_are_refused_or_have_one_spelling() {
    for bytes in all_bytes() {
        for width in [2, 4, 8, 16] {
            for at in 0..bytes.len().saturating_sub(width) {
                let mut changed = bytes.clone();
                changed[at..at + width].fill(0xff);
                throw(&changed);
            }
        }
    }
}

#[test]
fn a_message_longer_than_the_bound_is_refused_whatever_it_says() {
    for mut bytes in messages() {
        bytes.resize(MESSAGE_BYTES_MAX + 1, 0);
        let refused = WireError::TooLong { bytes: MESSAGE_BYTES_MAX + 1 };
        match wire::decode_request(&bytes) {
            Err(WireError::Version { got: 0 }) => {}
            other => assert_eq!(other, Err(refused.clone())),
        }
        assert_eq!(wire::decode_reply(&bytes), Err(refused));
    }
    assert!(matches!(wire::decode_record(&vec![0; 1 << 20]), Err(WireError::TooLong { .. })));
}

#[test]
fn any_other_version_is_told_apart_whatever_follows_it() {
    for got in (2..=u16::MAX).step_by(97).chain([2, 3, 256, u16::MAX]) {
        for rest in [0, 1, 77, MESSAGE_BYTES_MAX, 100_000] {
            let mut bytes = got.to_le_bytes().to_vec();
            bytes.resize(2 + rest, 0xab);
            assert_eq!(wire::decode_request(&bytes), Err(WireError::Version { got }));
            assert_eq!(wire::decode_reply(&bytes), Err(WireError::Version { got }));
        }
    }
}

#[test]
fn the_versions_are_told_in_one_spelling_only() {
    // As a variant of version 1, it would be a second one.
    let blank = wire::encode_reply(&sender(), &Reply::Refused(refusals()[4]));
    let head = blank.len() - 8;
    let mut forged = blank[..head].to_vec();
    forged.extend(15u32.to_le_bytes());
    forged.extend([1, 0, 2, 0]);
    assert!(matches!(wire::decode_reply(&forged), Err(WireError::Malformed { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        throw(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_good_head_never_panic(
        tail in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..900),
        variant in 0u32..16,
    ) {
        let mut bytes = wire::encode_request(&sender(), &requests()[0])[..74].to_vec();
        bytes.extend(variant.to_le_bytes());
        bytes.extend(tail);
        throw(&bytes);
    }

    #[test]
    fn a_piece_of_one_message_inside_another_never_panics(
        into in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        piece in any::<prop::sample::Index>(),
        length in 0usize..64,
    ) {
        let all = all_bytes();
        let (mut bytes, from) = (into.get(&all).clone(), from.get(&all));
        let (at, piece) = (at.index(bytes.len()), piece.index(from.len()));
        let length = length.min(bytes.len() - at).min(from.len() - piece);
        bytes[at..at + length].copy_from_slice(&from[piece..piece + length]);
        throw(&bytes);
    }
}

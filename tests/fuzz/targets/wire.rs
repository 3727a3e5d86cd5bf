//! Decoding is total, and whatever it accepts has one spelling only: it is encoded to the bytes that it came from, and
//! decoded from them to itself.

use tiebreak::testing::wire::{self, Datagram, WireError};

pub fn run(bytes: &[u8]) {
    let request = wire::decode_request(bytes);
    if let Ok((from, request)) = &request {
        let again = wire::encode_request(from, request);
        assert_eq!(again, bytes, "a second spelling of a request");
        assert_eq!(wire::decode_request(&again), Ok((*from, *request)));
    }
    let reply = wire::decode_reply(bytes);
    if let Ok((from, reply)) = &reply {
        let again = wire::encode_reply(from, reply);
        assert_eq!(again, bytes, "a second spelling of a reply");
        assert_eq!(wire::decode_reply(&again).as_ref(), Ok(&(*from, reply.clone())));
    }
    if let Ok(record) = wire::decode_record(bytes) {
        let again = wire::encode_record(&record);
        assert_eq!(again, bytes, "a second spelling of a record");
        assert_eq!(wire::decode_record(&again), Ok(record));
    }
    match wire::decode_datagram(bytes) {
        Ok(Datagram::Request(from, request)) => {
            assert_eq!(wire::encode_datagram_request(&from, &request), bytes);
        }
        Ok(Datagram::Reply(from, reply)) => assert_eq!(wire::encode_datagram_reply(&from, &reply), bytes),
        Err(_) => {}
    }
    versions(bytes, request.err(), reply.err());
}

/// A version that is not spoken is told apart by its first two bytes, whatever follows, so that it can be answered.
fn versions(bytes: &[u8], request: Option<WireError>, reply: Option<WireError>) {
    let [low, high, ..] = bytes else {
        assert_eq!((request, reply), (Some(WireError::Truncated), Some(WireError::Truncated)));
        return;
    };
    let got = u16::from_le_bytes([*low, *high]);
    let strange = Some(WireError::Version { got });
    let spoken = (wire::VERSION_LOWEST..=wire::VERSION).contains(&got);
    // Version 0 is known, and bears one reply only.
    assert!(got != 0 || request.is_some());
    assert!(got == 0 || (request == strange) != spoken);
    assert_eq!(reply == strange, !spoken && got != 0);
}

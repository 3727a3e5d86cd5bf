//! The bytes of every message and record, frozen, in both directions: `tests/vectors/version-1.txt`.
//!
//! A message that changes is a new version, with vectors of its own. Only before the first release, or for
//! something that is new altogether, the file is written again:
//!
//! ```sh
//! TIEBREAK_WRITE_VECTORS=1 cargo test --test vectors
//! ```

mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use samples::*;
use tiebreak::limits::{MESSAGE_BYTES_MAX, RECORD_BYTES_MAX};
use tiebreak::message::{Hello, NameReply, Record, Refusal, Reply, Report, Request};
use tiebreak::testing::wire;

#[derive(Debug, Clone, PartialEq)]
enum Sample {
    Request(Request),
    Reply(Reply),
    Record(Box<Record>),
}

impl Sample {
    fn name(&self) -> String {
        match self {
            Sample::Request(Request::Name(of)) => format!("request Name {}", name_request_name(of)),
            Sample::Request(request) => format!("request {}", request_name(request)),
            Sample::Reply(Reply::Name(NameReply::Refused(refusal))) => {
                format!("reply Name Refused {}", name_refusal_name(refusal))
            }
            Sample::Reply(Reply::Name(of)) => format!("reply Name {}", name_reply_name(of)),
            Sample::Reply(Reply::Refused(refusal)) => format!("reply Refused {}", refusal_name(refusal)),
            Sample::Reply(Reply::Status(report)) => {
                let standing = standing_name(&report.standing);
                format!("reply Status {} {standing}", role_name(&report.role))
            }
            Sample::Reply(reply) => format!("reply {}", reply_name(reply)),
            Sample::Record(record) => format!("record {}", record_name(record)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Sample::Request(request) => wire::encode_request(&sender(), request),
            Sample::Reply(reply) => wire::encode_reply(&sender(), reply),
            Sample::Record(record) => wire::encode_record(record),
        }
    }

    /// Reads bytes as what this sample is.
    fn decode(&self, bytes: &[u8]) -> Sample {
        match self {
            Sample::Request(_) => {
                let (from, request) = wire::decode_request(bytes).expect("a request");
                assert_eq!(from, sender());
                Sample::Request(request)
            }
            Sample::Reply(_) => {
                let (from, reply) = wire::decode_reply(bytes).expect("a reply");
                assert_eq!(from, sender());
                Sample::Reply(reply)
            }
            Sample::Record(_) => Sample::Record(Box::new(wire::decode_record(bytes).expect("a record"))),
        }
    }
}

/// Every sample under a name of its own.
fn samples() -> Vec<(String, Sample)> {
    let all = requests()
        .into_iter()
        .map(Sample::Request)
        .chain(replies().into_iter().map(Sample::Reply))
        .chain(records().into_iter().map(|record| Sample::Record(Box::new(record))));
    let mut seen = BTreeMap::<String, u32>::new();
    let named = all.map(|sample| {
        let name = sample.name();
        let number = seen.entry(name.clone()).or_default();
        *number += 1;
        (if *number == 1 { name } else { format!("{name} ({number})") }, sample)
    });
    named.collect()
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/version-1.txt")
}

fn write_vectors() {
    let mut text = String::from(
        "# The bytes of every message and record of version 1. Written and checked by tests/vectors.rs.\n",
    );
    for (name, sample) in samples() {
        writeln!(text, "\n{name}").expect("a string takes any text");
        for line in sample.encode().chunks(32) {
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "    {}", hex.join(" ")).expect("a string takes any text");
        }
    }
    std::fs::write(file(), text).expect("the vectors can be written");
}

fn read_vectors() -> BTreeMap<String, Vec<u8>> {
    let text = std::fs::read_to_string(file()).expect("the vectors are there");
    let mut vectors = BTreeMap::new();
    let mut name = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(hex) = line.strip_prefix("    ") {
            let name = name.clone().expect("bytes follow a name");
            let bytes: &mut Vec<u8> = vectors.entry(name).or_default();
            bytes.extend(hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits")));
        } else {
            assert!(!vectors.contains_key(line), "{line} stands there twice");
            name = Some(line.to_owned());
        }
    }
    vectors
}

#[test]
fn every_message_and_record_has_its_golden_bytes_in_both_directions() {
    if std::env::var_os("TIEBREAK_WRITE_VECTORS").is_some() {
        write_vectors();
    }
    let mut vectors = read_vectors();
    for (name, sample) in samples() {
        let golden = vectors.remove(&name).unwrap_or_else(|| panic!("no vector for {name}"));
        assert_eq!(sample.encode(), golden, "the bytes of {name} have changed");
        assert_eq!(sample.decode(&golden), sample, "the meaning of {name} has changed");
    }
    assert!(vectors.is_empty(), "vectors of nothing: {:?}", vectors.keys());
}

#[test]
fn no_variant_is_without_a_sample() {
    let have: BTreeSet<&str> = requests().iter().map(request_name).collect();
    assert_eq!(have, REQUESTS.iter().copied().collect());
    let have: BTreeSet<&str> = replies().iter().map(reply_name).collect();
    assert_eq!(have, REPLIES.iter().copied().collect());
    let have: BTreeSet<&str> = refusals().iter().map(refusal_name).collect();
    assert_eq!(have, REFUSALS.iter().copied().collect());
    let have: BTreeSet<&str> = name_requests().iter().map(name_request_name).collect();
    assert_eq!(have, NAME_REQUESTS.iter().copied().collect());
    let have: BTreeSet<&str> = name_replies().iter().map(name_reply_name).collect();
    assert_eq!(have, NAME_REPLIES.iter().copied().collect());
    let have: BTreeSet<&str> = name_refusals().iter().map(name_refusal_name).collect();
    assert_eq!(have, NAME_REFUSALS.iter().copied().collect());
    let have: BTreeSet<&str> = records().iter().map(record_name).collect();
    assert_eq!(have, RECORDS.iter().copied().collect());
    let statuses: Vec<Box<Report>> =
        replies().into_iter().filter_map(|r| if let Reply::Status(s) = r { Some(s) } else { None }).collect();
    let have: BTreeSet<&str> = statuses.iter().map(|status| role_name(&status.role)).collect();
    assert_eq!(have, ROLES.iter().copied().collect());
    let hellos =
        requests().into_iter().filter_map(|r| if let Request::Hello(h) = r { Some(h) } else { None });
    let standings = hellos.map(|Hello { standing, .. }| standing).chain(statuses.iter().map(|s| s.standing));
    let have: BTreeSet<&str> = standings.map(|standing| standing_name(&standing)).collect();
    assert_eq!(have, STANDINGS.iter().copied().collect());
}

/// The sizes of all fields are fixed but for what is optional, so the sample in which everything is there is the
/// largest.
#[test]
fn the_largest_message_and_record_fit_their_bounds() {
    let largest = |prefix: &str| {
        let sizes = samples().into_iter().filter(|(name, _)| name.starts_with(prefix));
        sizes.map(|(name, sample)| (sample.encode().len(), name)).max().expect("samples")
    };
    let (bytes, name) = largest("reply");
    assert_eq!(name, "reply Status Solo Resyncing");
    assert!(bytes <= MESSAGE_BYTES_MAX, "{bytes}");
    // The largest refusal in the largest report.
    let longest =
        refusals().into_iter().max_by_key(|r| wire::encode_reply(&sender(), &Reply::Refused(*r)).len());
    assert!(matches!(longest, Some(Refusal::Copied { .. })));
    assert!(largest("request").0 <= MESSAGE_BYTES_MAX);
    assert!(largest("record").0 <= RECORD_BYTES_MAX);
}

#[test]
fn the_answer_that_tells_the_versions_does_not_depend_on_the_version() {
    let bytes = wire::encode_reply(&sender(), &wire::versions());
    assert_eq!(&bytes[..2], [0, 0]);
    assert_eq!(&bytes[bytes.len() - 4..], [1, 0, 1, 0]);
    assert_eq!(bytes.len(), 2 + 16 + 32 + 16 + 4 + 4 + 4);
}

//! What a durable vote costs: the shipped ledger beside a bare write and fdatasync of as many bytes, on the same disk
//! and in turns; the throughput of votes that share a sync; bytes per vote, and what they do to an SD card in a year.
//! It measures and prints Markdown, and asserts nothing:
//!
//! ```text
//! cargo bench --bench votes                                # in the directory of the build
//! cargo bench --bench votes -- --directory /var/lib --seconds 5
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tiebreak::ids::{Incarnation, Term};
use tiebreak::limits::BLOCK_BYTES;
use tiebreak::message::{Record, WitnessRecord};
use tiebreak::testing::Witness;
use tiebreak::testing::disk::{DirectoryLock, Disk, DiskFile, RealDisk};
use tiebreak::testing::ledger::{Ledger, Purpose, Slot};

/// Voters that share one sync.
const VOTERS: [usize; 4] = [1, 10, 100, 1000];
/// A record is written as two copies, a block each.
const VOTE_BYTES: usize = 2 * BLOCK_BYTES;
/// Two generations of two copies: where one record lives.
const SLOT_BYTES: usize = 2 * VOTE_BYTES;
const ROUNDS_MIN: usize = 20;

fn main() {
    let seconds = option("--seconds").map_or(4.0, |text| text.parse().expect("--seconds wants a number"));
    let place = option("--directory").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let directory = tempfile::tempdir_in(place).expect("a directory on the disk that is measured");
    println!("### A durable vote\n");
    println!("Disk of `{}`, {} cores; every round takes turns.\n", file_system(directory.path()), cores());
    println!(
        "| voters that share a sync | votes and their sync, median | p99 | bare write and fdatasync of as many \
         bytes, median | p99 | ratio of the medians | votes a second | bytes per vote |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    let span = Duration::from_secs_f64(seconds);
    let (mut bytes_per_vote, mut kernel) = (0.0, String::new());
    for voters in VOTERS {
        let measured = measure(&directory.path().join(voters.to_string()), voters, span);
        let (votes, bare) = (measured.votes.median(), measured.bare.median());
        println!(
            "| {voters} | {:.3} ms | {:.3} ms | {:.3} ms | {:.3} ms | {:.2} | {:.0} | {:.0} |",
            ms(votes),
            ms(measured.votes.at(0.99)),
            ms(bare),
            ms(measured.bare.at(0.99)),
            votes.as_secs_f64() / bare.as_secs_f64(),
            voters as f64 * measured.votes.spans.len() as f64 / measured.votes.total().as_secs_f64(),
            measured.bytes_per_vote,
        );
        if voters == 1 {
            bytes_per_vote = measured.bytes_per_vote;
            kernel = kernel_words(measured.kernel_bytes_per_vote);
        }
    }
    println!("\n{kernel}");
    wear(bytes_per_vote);
}

fn kernel_words(bytes: Option<f64>) -> String {
    match bytes {
        Some(bytes) => {
            format!("As the kernel counts them for the process (`/proc/self/io`): {bytes:.0} bytes per vote.")
        }
        None => "The kernel does not count what this file system writes (`/proc/self/io`).".into(),
    }
}

struct Measured {
    votes: Spans,
    bare: Spans,
    /// What the ledger handed to its file.
    bytes_per_vote: f64,
    /// What the kernel says that the process sent to the disk.
    kernel_bytes_per_vote: Option<f64>,
}

fn measure(directory: &Path, voters: usize, span: Duration) -> Measured {
    let disk = Counting::default();
    let first: Vec<Record> = (0..voters).map(|voter| Record::Witness(vote(voter, 0))).collect();
    Ledger::create(&disk, directory, Purpose::Witness, Incarnation(1), &first).expect("a new ledger");
    let (mut ledger, records) = Ledger::open(&disk, directory, Purpose::Witness).expect("it opens");
    let slots: Vec<Slot> = records.into_iter().map(|(slot, _)| slot).collect();
    let bare = Bare::create(&directory.join("bare"), voters);
    let (mut ours, mut theirs) = (Spans::default(), Spans::default());
    let mut kernel = 0;
    let before = disk.bytes.load(Ordering::Relaxed);
    let began = Instant::now();
    let mut round: u32 = 0;
    while began.elapsed() < span || ours.spans.len() < ROUNDS_MIN {
        round += 1;
        let written = kernel_bytes();
        ours.time(|| cast(&mut ledger, &slots, round));
        kernel += kernel_bytes().saturating_sub(written);
        theirs.time(|| bare.write(round));
    }
    let votes = (voters * ours.spans.len()) as f64;
    let bytes_per_vote = (disk.bytes.load(Ordering::Relaxed) - before) as f64 / votes;
    let kernel_bytes_per_vote = (kernel > 0).then_some(kernel as f64 / votes);
    Measured { votes: ours, bare: theirs, bytes_per_vote, kernel_bytes_per_vote }
}

/// Every voter votes, and no answer leaves before the sync that they share.
fn cast(ledger: &mut Ledger, slots: &[Slot], round: u32) {
    let answer = |(voter, slot): (usize, &Slot)| {
        let record = Record::Witness(vote(voter, round));
        ledger.seal(*slot, Some(&record), voter).expect("the ledger goes on")
    };
    let sealed: Vec<_> = slots.iter().enumerate().map(answer).collect();
    let proof = ledger.sync().expect("the disk goes on");
    for answer in sealed {
        answer.release(&proof).expect("the sync covers it");
    }
}

fn vote(voter: usize, term: u32) -> WitnessRecord {
    let name = format!("cluster-{voter}").parse().expect("a name");
    let life = Incarnation(voter as u128 + 1);
    let mut record = Witness::blank("w".parse().expect("a name"), name, life);
    record.promised.term = Term(term);
    record
}

/// A file that is as long as the ledger's records, written where those would be, with nothing else around it.
struct Bare {
    file: File,
    bytes: Vec<u8>,
}

impl Bare {
    fn create(path: &Path, voters: usize) -> Bare {
        let file = OpenOptions::new().write(true).create_new(true).open(path).expect("a new file");
        file.write_all_at(&vec![1; voters * SLOT_BYTES], 0).expect("room");
        file.sync_all().expect("synced");
        Bare { file, bytes: vec![2; voters * VOTE_BYTES] }
    }

    /// All bytes in one write: the least that a disk can be asked.
    fn write(&self, round: u32) {
        let offset = if round.is_multiple_of(2) { 0 } else { self.bytes.len() as u64 };
        self.file.write_all_at(&self.bytes, offset).expect("written");
        self.file.sync_data().expect("synced");
    }
}

/// The machine's own disk, with what is written counted.
#[derive(Default)]
struct Counting {
    bytes: Arc<AtomicU64>,
}

struct CountingFile {
    file: Box<dyn DiskFile>,
    bytes: Arc<AtomicU64>,
}

impl Counting {
    fn counted(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(CountingFile { file, bytes: self.bytes.clone() })
    }
}

impl Disk for Counting {
    fn lock(&self, directory: &Path) -> io::Result<Box<dyn DirectoryLock>> {
        RealDisk.lock(directory)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        RealDisk.create_directory(directory)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.counted(RealDisk.open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.counted(RealDisk.create(path)?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        RealDisk.sync_directory(directory)
    }
}

impl DiskFile for CountingFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[derive(Default)]
struct Spans {
    spans: Vec<Duration>,
}

impl Spans {
    fn time(&mut self, work: impl FnOnce()) {
        let began = Instant::now();
        work();
        self.spans.push(began.elapsed());
    }

    fn at(&self, share: f64) -> Duration {
        let mut sorted = self.spans.clone();
        sorted.sort();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
        let place = ((sorted.len() - 1) as f64 * share).round() as usize;
        sorted[place]
    }

    fn median(&self) -> Duration {
        self.at(0.5)
    }

    fn total(&self) -> Duration {
        self.spans.iter().sum()
    }
}

/// What is assumed of a year and of a card. Everything that is printed about wear follows from these.
mod assumed {
    /// Elections and confirmations of one cluster in a day: far more than a healthy pair has.
    pub(super) const VOTES_PER_CLUSTER_AND_DAY: f64 = 4.0;
    /// New links of the replicas of one cluster in a day, each noted durably: restarts, and paths that went away.
    pub(super) const LINKS_PER_CLUSTER_AND_DAY: f64 = 20.0;
    /// Capacity of a small card.
    pub(super) const CARD_BYTES: f64 = 16e9;
    /// How often each cell can be erased: low for today's cards.
    pub(super) const ERASURES: f64 = 500.0;
    /// What a plain card erases for a small write that is synced on its own, at the worst.
    pub(super) const ERASE_BLOCK_BYTES: f64 = 4.0 * 1024.0 * 1024.0;
}

fn wear(bytes_per_vote: f64) {
    use assumed::{CARD_BYTES, ERASE_BLOCK_BYTES, ERASURES};
    let (votes, links) = (assumed::VOTES_PER_CLUSTER_AND_DAY, assumed::LINKS_PER_CLUSTER_AND_DAY);
    println!("\n### A year of an SD card\n");
    println!(
        "Assumed: {votes:.0} votes and {links:.0} new links per cluster and day, each a record of its own; a card of \
         {:.0} GB whose cells take {ERASURES:.0} erasures; at the worst every sync erases {:.0} MiB. A healthy \
         cluster whose links hold writes nothing at all.\n",
        CARD_BYTES / 1e9,
        ERASE_BLOCK_BYTES / (1024.0 * 1024.0),
    );
    println!(
        "| clusters | records a year | written by tiebreak | share of the card's life, best | at the worst |"
    );
    println!("|---:|---:|---:|---:|---:|");
    for clusters in [1.0, 10.0, 100.0, 1000.0] {
        let records = clusters * (votes + links) * 365.0;
        let share = |bytes: f64| 100.0 * bytes / (CARD_BYTES * ERASURES);
        println!(
            "| {clusters:.0} | {records:.0} | {:.3} GB | {:.5} % | {:.2} % |",
            records * bytes_per_vote / 1e9,
            share(records * bytes_per_vote),
            share(records * ERASE_BLOCK_BYTES),
        );
    }
}

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.next()?;
    Some(arguments.next().unwrap_or_else(|| panic!("{name} wants a value")))
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn kernel_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}

/// Type of the file system that holds a directory: its mount with the longest path.
fn file_system(directory: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let holds = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        directory.starts_with(point).then(|| (point.len(), kind.to_owned()))
    });
    holds.max().map_or_else(|| "unknown".into(), |(_, kind)| kind)
}

//! Whether an object store honours conditional writes. Some take the header and ignore it; then nothing is fenced.

use std::sync::Arc;

use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, UpdateVersion};

/// Writers in each race.
const WRITERS: usize = 16;
/// Races of each kind.
const RACES: usize = 6;

/// What a store does with conditions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Probed {
    /// What it did wrong; if nothing, it honours them as far as this could see.
    pub wrong: Vec<String>,
    /// Writes that took part in the races.
    pub raced: usize,
}

impl Probed {
    /// Whether fencing by conditional writes works on it.
    pub fn is_good(&self) -> bool {
        self.wrong.is_empty()
    }

    fn expect(&mut self, holds: bool, else_wrong: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(else_wrong());
        }
    }
}

/// Tries the store below `prefix`, with objects whose names begin with `name` (one that nobody else uses), and removes them
/// again: conditions that hold and that do not, and races of 16 writers of whom one may win.
///
/// # Errors
/// If the store cannot be used at all: its address, its credentials, the network.
pub async fn probe(store: Arc<dyn ObjectStore>, prefix: &Path, name: &str) -> Result<Probed, Error> {
    let mut probed = Probed::default();
    let mut made = Vec::new();
    let outcome = run(&*store, &mut probed, |number| {
        let path = prefix.clone().join(format!("{name}-{number}"));
        made.push(path.clone());
        path
    })
    .await;
    for path in &made {
        // One that was never made is not there.
        let _ = store.delete(path).await;
    }
    outcome.map(|()| probed)
}

async fn run(
    store: &dyn ObjectStore,
    probed: &mut Probed,
    mut path: impl FnMut(usize) -> Path,
) -> Result<(), Error> {
    let place = path(0);
    // Whatever is wrong with address and credentials shows here.
    let first = put(store, &place, "first", PutMode::Create).await?;
    let Some(first) = first else {
        probed.wrong.push("If-None-Match: * was refused although there was no object".into());
        return Ok(());
    };
    probed.expect(first.e_tag.is_some(), || "the store gives no ETag".into());
    let again = put(store, &place, "again", PutMode::Create).await?;
    probed.expect(again.is_none(), || "If-None-Match: * did not keep an object from being replaced".into());
    let second = put(store, &place, "second", PutMode::Update(first.clone())).await?;
    probed
        .expect(second.is_some() || again.is_some(), || "If-Match with the present ETag was refused".into());
    let stale = put(store, &place, "stale", PutMode::Update(first)).await?;
    probed
        .expect(stale.is_none(), || "If-Match with an earlier ETag replaced the object all the same".into());
    for race in 1..=RACES {
        let place = path(race);
        contend(store, probed, &place, &PutMode::Create, "If-None-Match: *").await?;
        let now = store.head(&place).await?;
        let version = UpdateVersion { e_tag: now.e_tag, version: now.version };
        contend(store, probed, &place, &PutMode::Update(version), "If-Match").await?;
    }
    Ok(())
}

/// All write at once on the same condition: exactly one may win, and what it wrote has to be there.
async fn contend(
    store: &dyn ObjectStore,
    probed: &mut Probed,
    place: &Path,
    mode: &PutMode,
    condition: &str,
) -> Result<(), Error> {
    let texts: Vec<String> = (0..WRITERS).map(|writer| format!("{condition} writer {writer}")).collect();
    let puts = texts.iter().map(|text| put(store, place, text, mode.clone()));
    let ended = join_all(puts).await;
    probed.raced += WRITERS;
    let mut winners = Vec::new();
    for (text, ended) in texts.iter().zip(ended) {
        match ended {
            Ok(Some(_)) => winners.push(text),
            // Some stores say so when two conditional writes meet: nothing was written.
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    probed.expect(winners.len() == 1, || {
        format!("{condition}: of {WRITERS} writers at once {} won, and one may", winners.len())
    });
    let there = store.get(place).await?.bytes().await?;
    let kept = winners.iter().any(|text| text.as_bytes() == there);
    probed.expect(kept || winners.is_empty(), || format!("{condition}: what the winner wrote is not there"));
    Ok(())
}

/// The new version, or `None` if the condition did not hold.
async fn put(
    store: &dyn ObjectStore,
    place: &Path,
    text: &str,
    mode: PutMode,
) -> Result<Option<UpdateVersion>, Error> {
    let options = PutOptions { mode, ..PutOptions::default() };
    match store.put_opts(place, PutPayload::from(text.to_owned()), options).await {
        Ok(put) => Ok(Some(UpdateVersion { e_tag: put.e_tag, version: put.version })),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

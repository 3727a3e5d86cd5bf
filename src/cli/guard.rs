//! `tiebreak guard`: whether a resource can refuse a stale writer.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use object_store::ObjectStore;
use object_store::path::Path;
use url::Url;

use crate::edge::clock::random_u128;
use crate::fence::probe;

/// Tell whether a resource can refuse a stale writer
#[derive(Subcommand, Debug)]
pub enum Guard {
    /// Race writers against an object store's conditions
    Probe(Probe),
}

/// Race writers against an object store's conditions
#[derive(Args, Debug)]
#[command(
    after_help = "Writes a few small objects whose names begin with tiebreak-probe-, and removes them again. Credentials and \
                  endpoint come from the environment, as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT \
                  and AWS_ALLOW_HTTP. Exit code: 0 yes, it honours conditional writes as far as this could see; 1 no; 3 it \
                  could not be tried."
)]
pub struct Probe {
    /// Where: s3://BUCKET[/PREFIX], or memory:/// to see how it looks
    url: Url,
}

/// It could not be tried.
const UNKNOWN: u8 = 3;

impl Guard {
    /// Does what was asked for.
    ///
    /// # Errors
    /// If nothing can be run at all on this machine.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Guard::Probe(Probe { url }) = self;
        let (store, prefix) = match open(&url) {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("tiebreak: {error:#}");
                return Ok(ExitCode::from(UNKNOWN));
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let name = format!("tiebreak-probe-{:016x}", random_u128() >> 64);
        match runtime.block_on(probe(store, &prefix, &name)) {
            Ok(probed) if probed.is_good() => {
                println!(
                    "yes: {url} honours conditional writes ({} writers in races, one winner each time)",
                    probed.raced
                );
                Ok(ExitCode::SUCCESS)
            }
            Ok(probed) => {
                println!("no: {url} does not honour conditional writes, and can fence nobody:");
                for wrong in &probed.wrong {
                    println!("  {wrong}");
                }
                Ok(ExitCode::FAILURE)
            }
            Err(error) => {
                eprintln!("tiebreak: {url} could not be tried: {error}");
                Ok(ExitCode::from(UNKNOWN))
            }
        }
    }
}

/// A store with the credentials and the endpoint of the environment, and what stands behind its name in the address.
///
/// # Errors
/// If the address is of no store that is known here.
pub(super) fn open(url: &Url) -> anyhow::Result<(Arc<dyn ObjectStore>, Path)> {
    // The names of settings are known in lower case; what is none of them is passed over.
    let settings = std::env::vars().map(|(name, value)| (name.to_ascii_lowercase(), value));
    let (store, path) = object_store::parse_url_opts(url, settings)
        .with_context(|| format!("{url}: not an address of a store, or its settings are not good"))?;
    Ok((Arc::from(store), path))
}

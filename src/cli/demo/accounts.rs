//! Balances outside of the cluster, as whoever writes to them reaches them: read, compute, and write with the token.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::ids::Token;

use super::messages::{Account, Answer, FromGate, ToGate, Written, receive, send};

/// The user who owns the demo's tables.
pub(super) const OWNER: &str = "demo";
/// SQLSTATE of a token that is refused, as `fence.sql` has it.
const STALE: &str = "TB001";

/// What a writer does: reads all balances and adds to each; writes when it is told to, whatever time has passed.
///
/// It has looked at its lease before it began, and does not look again. However near to the write it did, a process can be
/// stopped in between.
pub(super) async fn change(
    accounts: Vec<Account>,
    add: i64,
    token: Token,
    begun: oneshot::Sender<Answer>,
    finish: oneshot::Receiver<oneshot::Sender<Answer>>,
) {
    let mut balances = Vec::new();
    for account in &accounts {
        match read(account).await {
            Ok(balance) => balances.push(balance + add),
            Err(error) => {
                let _ = begun.send(Answer::Failed { why: format!("{error:#}") });
                return;
            }
        }
    }
    let _ = begun.send(Answer::Begun { token });
    let Ok(finished) = finish.await else { return };
    let mut written = Vec::new();
    for (account, balance) in accounts.iter().zip(balances) {
        match write(account, token, balance).await {
            Ok(outcome) => written.push(outcome),
            Err(error) => {
                let _ = finished.send(Answer::Failed { why: format!("{error:#}") });
                return;
            }
        }
    }
    let _ = finished.send(Answer::Finished { written });
}

/// The balance as it is now.
///
/// # Errors
/// If the resource cannot be read, or holds no number.
pub(super) async fn read(account: &Account) -> anyhow::Result<i64> {
    let text = match account {
        Account::File { path } => {
            std::fs::read_to_string(path).with_context(|| path.display().to_string())?
        }
        Account::Gated { server } => {
            let mut stream = TcpStream::connect(server).await?;
            send(&mut stream, &ToGate::Read).await?;
            let FromGate::Balance(balance) = receive(&mut stream).await? else { bail!("no balance") };
            return Ok(balance);
        }
        Account::Table { psql, socket, table } => {
            match run_sql(psql, socket, &format!("SELECT balance FROM {table}")).await? {
                Ok(rows) => rows,
                Err(said) => bail!("{said}"),
            }
        }
        #[cfg(feature = "object-store")]
        Account::Object { url, fenced } => object::read(url, *fenced).await?,
    };
    text.trim().parse().with_context(|| format!("{text:?} is no balance"))
}

/// Sets the balance with the token, where the resource can take one.
///
/// # Errors
/// If the resource does not work. A refusal is none.
pub(super) async fn write(account: &Account, token: Token, balance: i64) -> anyhow::Result<Written> {
    match account {
        Account::File { path } => {
            std::fs::write(path, balance.to_string()).with_context(|| path.display().to_string())?;
            Ok(Written::Landed)
        }
        Account::Gated { server } => {
            let mut stream = TcpStream::connect(server).await?;
            send(&mut stream, &ToGate::Write { token, balance }).await?;
            let FromGate::Written(written) = receive(&mut stream).await? else {
                bail!("no answer to a write")
            };
            Ok(written)
        }
        Account::Table { psql, socket, table } => {
            let sql = format!(
                "BEGIN; SET LOCAL tiebreak.token = '{token}'; UPDATE {table} SET balance = {balance}; COMMIT"
            );
            match run_sql(psql, socket, &sql).await? {
                Ok(_) => Ok(Written::Landed),
                Err(said) if said.contains(STALE) => Ok(Written::Refused(said)),
                Err(said) => bail!("{said}"),
            }
        }
        #[cfg(feature = "object-store")]
        Account::Object { url, fenced } => object::write(url, *fenced, token, balance).await,
    }
}

/// Runs statements. What they return, or the server's refusal.
pub(super) async fn run_sql(psql: &Path, socket: &Path, sql: &str) -> anyhow::Result<Result<String, String>> {
    let mut command = Command::new(psql);
    // A SQLSTATE before each message.
    command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
    command.args(["-U", OWNER, "-d", "postgres", "-c", sql, "-h"]).arg(socket);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| psql.display().to_string())?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8(output.stdout)?));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(Err(said.lines().next().unwrap_or("psql failed, and says nothing").to_owned()))
}

/// In object stores.
#[cfg(feature = "object-store")]
pub(super) mod object {
    use object_store::ObjectStoreExt as _;

    use crate::cli::demo::messages::Written;
    use crate::cli::guard::open;
    use crate::fence::{FencedStore, ObjectError};
    use crate::ids::Token;

    pub(in crate::cli::demo) async fn read(url: &str, fenced: bool) -> anyhow::Result<String> {
        let (store, path) = open(&url.parse()?)?;
        let body = if fenced {
            // A reader: whatever token is there counts.
            FencedStore::new(store, Token(u64::MAX)).get(&path).await?
        } else {
            store.get(&path).await?.bytes().await?.to_vec()
        };
        Ok(String::from_utf8(body)?)
    }

    pub(in crate::cli::demo) async fn write(
        url: &str,
        fenced: bool,
        token: Token,
        balance: i64,
    ) -> anyhow::Result<Written> {
        let (store, path) = open(&url.parse()?)?;
        if !fenced {
            store.put(&path, balance.to_string().into()).await?;
            return Ok(Written::Landed);
        }
        match FencedStore::new(store, token).put(&path, balance.to_string().into()).await {
            Ok(()) => Ok(Written::Landed),
            Err(ObjectError::Stale { stale, .. }) => Ok(Written::Refused(stale.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    pub(in crate::cli::demo) async fn remove(url: &str) -> anyhow::Result<()> {
        let (store, path) = open(&url.parse()?)?;
        Ok(store.delete(&path).await?)
    }
}

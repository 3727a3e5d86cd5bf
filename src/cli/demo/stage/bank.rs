//! Where the balances of `tiebreak demo fencing` are kept, each kind of place twice: one that can refuse a stale writer, and
//! one that cannot.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};

use crate::cli::demo::accounts;
use crate::cli::demo::messages::{Account, FromGate, ToGate, Written, receive, send};
use crate::fence::{GateError, Gates};
use crate::ids::ResourceName;

use super::postgresql::Server;

/// What each balance is at first.
pub(super) const FIRST: i64 = 100;

/// A balance, with what is said of it.
pub(super) struct Kept {
    pub(super) account: Account,
    pub(super) place: &'static str,
    /// What refuses a stale writer; `None` if nothing does.
    pub(super) refuses: Option<&'static str>,
}

pub(super) struct Bank {
    pub(super) kept: Vec<Kept>,
    /// Which kinds of places are left out, and why.
    pub(super) skipped: Vec<String>,
    postgresql: Option<Server>,
}

impl Bank {
    /// Opens whatever can be opened on this machine.
    ///
    /// # Errors
    /// If a place that is there cannot be used.
    pub(super) async fn open(directory: &Path, s3: Option<&str>) -> anyhow::Result<Bank> {
        let mut bank = Bank { kept: Vec::new(), skipped: Vec::new(), postgresql: None };
        bank.files(directory).await?;
        bank.tables().await.context("PostgreSQL")?;
        bank.objects(s3).await.context("the object store")?;
        Ok(bank)
    }

    async fn files(&mut self, directory: &Path) -> anyhow::Result<()> {
        let (plain, guarded) = (directory.join("plain"), directory.join("guarded"));
        for path in [&plain, &guarded] {
            fs::write(path, FIRST.to_string())?;
        }
        let gates = directory.join("gates");
        Gates::create(&gates)?;
        let gates = Arc::new(Gates::open(&gates)?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, gates.clone(), guarded.clone()));
            }
        });
        self.keep("a plain file", None, Account::File { path: plain });
        self.keep("a file behind a server", Some("fence::Gates"), Account::Gated { server });
        Ok(())
    }

    async fn tables(&mut self) -> anyhow::Result<()> {
        let Some(server) = Server::start()? else {
            self.skipped.push("PostgreSQL: not installed (apt-get install postgresql)".into());
            return Ok(());
        };
        let (psql, socket) = (server.psql(), server.socket().to_owned());
        self.postgresql = Some(server);
        let mut script = include_str!("../../../../deploy/postgresql/fence.sql").to_owned();
        for table in ["plain", "guarded"] {
            script += &format!("CREATE TABLE {table} AS SELECT {FIRST}::bigint AS balance;");
        }
        script += "SELECT tiebreak.protect('guarded', 'account');";
        accounts::run_sql(&psql, &socket, &script).await?.map_err(anyhow::Error::msg)?;
        let table = |name: &str| Account::Table {
            psql: psql.clone(),
            socket: socket.clone(),
            table: name.to_owned(),
        };
        self.keep("a table of PostgreSQL", None, table("plain"));
        self.keep("a table of PostgreSQL", Some("fence.sql"), table("guarded"));
        Ok(())
    }

    #[cfg(feature = "object-store")]
    async fn objects(&mut self, s3: Option<&str>) -> anyhow::Result<()> {
        use crate::edge::clock::random_u64;
        use crate::ids::Token;

        let Some(s3) = s3 else {
            self.skipped.push("an object store: none given (--s3 s3://BUCKET/PREFIX)".into());
            return Ok(());
        };
        let name = format!("{}/tiebreak-demo-{:016x}", s3.trim_end_matches('/'), random_u64());
        for (place, refuses) in [("plain", None), ("guarded", Some("fence::FencedStore"))] {
            let account = Account::Object { url: format!("{name}-{place}"), fenced: refuses.is_some() };
            accounts::write(&account, Token::default(), FIRST).await?;
            self.keep("an object", refuses, account);
        }
        Ok(())
    }

    #[cfg(not(feature = "object-store"))]
    async fn objects(&mut self, s3: Option<&str>) -> anyhow::Result<()> {
        let without = "this binary was built without them (--features object-store)";
        anyhow::ensure!(s3.is_none(), "{without}");
        self.skipped.push(format!("object stores: {without}"));
        Ok(())
    }

    fn keep(&mut self, place: &'static str, refuses: Option<&'static str>, account: Account) {
        self.kept.push(Kept { account, place, refuses });
    }

    pub(super) fn accounts(&self) -> Vec<Account> {
        self.kept.iter().map(|kept| kept.account.clone()).collect()
    }

    /// Takes away what is not in the demo's own directory.
    pub(super) async fn close(self) {
        #[cfg(feature = "object-store")]
        for kept in &self.kept {
            if let Account::Object { url, .. } = &kept.account
                && let Err(error) = accounts::object::remove(url).await
            {
                eprintln!("{url} could not be removed: {error:#}");
            }
        }
        if let Some(server) = self.postgresql {
            server.end();
        }
    }
}

/// A server that keeps a balance for others, and admits them by their tokens.
async fn serve(mut stream: TcpStream, gates: Arc<Gates>, file: PathBuf) {
    let Ok(asked) = receive::<ToGate>(&mut stream).await else { return };
    // A new token costs a sync.
    let answer = tokio::task::spawn_blocking(move || answer(asked, &gates, &file)).await;
    match answer {
        Ok(Ok(answer)) => {
            let _ = send(&mut stream, &answer).await;
        }
        Ok(Err(error)) => tracing::error!("the server of the balance: {error:#}"),
        Err(_) => {}
    }
}

fn answer(asked: ToGate, gates: &Gates, file: &Path) -> anyhow::Result<FromGate> {
    let account: ResourceName = "account".parse()?;
    match asked {
        ToGate::Read => Ok(FromGate::Balance(fs::read_to_string(file)?.parse()?)),
        ToGate::Write { token, balance } => {
            match gates.admit_and(account, token, || fs::write(file, balance.to_string())) {
                Ok(written) => Ok(written.map(|()| FromGate::Written(Written::Landed))?),
                Err(GateError::Stale(stale)) => Ok(FromGate::Written(Written::Refused(stale.to_string()))),
                Err(error) => Err(error.into()),
            }
        }
    }
}

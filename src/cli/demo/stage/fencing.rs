//! The story of the late write: a writer is stopped past its lease in the middle of a change, its successor writes, and it
//! wakes and writes as well. The same writers change every balance; what differs is whether the resource can refuse.

use anyhow::{Context, bail, ensure};

use crate::cli::demo::accounts;
use crate::cli::demo::messages::{Answer, Request, Written};
use crate::ids::Token;

use super::bank::{Bank, FIRST, Kept};
use super::clients;
use super::nodes::{A, B, WITNESS, other};
use super::picture::Change;
use super::scene::Scene;

/// What the first writer takes from each balance, and what the second one adds.
const TAKES: i64 = 30;
const ADDS: i64 = 50;

pub(super) struct Fencing {
    scene: Scene,
    bank: Bank,
}

impl Fencing {
    pub(super) fn new(scene: Scene, bank: Bank) -> Fencing {
        Fencing { scene, bank }
    }

    /// Plays it. Whether each resource with a gate refused the late write, and each without one took it.
    pub(super) async fn play(&mut self) -> anyhow::Result<bool> {
        for skipped in &self.bank.skipped {
            self.scene.picture.say(&format!("skipped: {skipped}"));
        }
        for name in [WITNESS, B, A] {
            self.scene.nodes.start(name)?;
        }
        self.scene.until_well().await?;
        self.scene.picture.act("1. A writer checks its lease, and begins a change");
        let (first, _) = self.scene.leader()?;
        let token = self.begin(first, -TAKES).await?;
        self.scene.picture.say(&format!(
            "{first} has token {token} and a valid lease; every balance is {FIRST}, it takes {TAKES} from each"
        ));

        self.scene.picture.act("2. It is stopped before it writes (SIGSTOP), for longer than its lease");
        self.scene.nodes.pause(first)?;
        let second = other(first);
        self.scene
            .until("the other to lead with a higher token", |seen| {
                seen.leader().is_some_and(|(name, status)| name == second && status.token > Some(token))
            })
            .await?;
        let newer = self.begin(second, ADDS).await?;
        for written in self.finish(second).await? {
            ensure!(written == Written::Landed, "{second} leads, and was refused: {written:?}");
        }
        let deposited = FIRST + ADDS;
        self.scene.picture.say(&format!(
            "{second} leads with token {newer}; it adds {ADDS} to each balance, which is {deposited} now"
        ));

        self.scene.picture.act("3. It goes on (SIGCONT), and writes what it had computed");
        self.scene.nodes.go_on(first)?;
        let late = self.finish(first).await?;
        let mut as_told = true;
        let mut changes = Vec::new();
        for (kept, late) in self.bank.kept.iter().zip(late) {
            let balance = accounts::read(&kept.account).await?;
            as_told &= match &late {
                Written::Refused(_) => kept.refuses.is_some() && balance == deposited,
                Written::Landed => kept.refuses.is_none() && balance == FIRST - TAKES,
            };
            changes.push(change(kept, &late, balance, deposited));
        }
        self.scene.picture.changes(&changes);
        Ok(as_told)
    }

    /// Lets a leader look at its lease, and read. The token that it will write with.
    async fn begin(&self, name: &'static str, add: i64) -> anyhow::Result<Token> {
        let request = Request::Begin { accounts: self.bank.accounts(), add };
        match self.ask(name, &request).await? {
            Answer::Begun { token } => Ok(token),
            answer => bail!("{name} does not begin: {answer:?}"),
        }
    }

    /// Lets it write.
    async fn finish(&self, name: &'static str) -> anyhow::Result<Vec<Written>> {
        match self.ask(name, &Request::Finish).await? {
            Answer::Finished { written } => Ok(written),
            answer => bail!("{name} does not finish: {answer:?}"),
        }
    }

    async fn ask(&self, name: &'static str, request: &Request) -> anyhow::Result<Answer> {
        let asked = clients::ask(self.scene.nodes.server(name), request, self.scene.patience());
        asked.await.with_context(|| format!("no answer of {name}"))
    }

    /// Ends all processes, and takes away what they left elsewhere.
    pub(super) async fn end(mut self) {
        self.scene.nodes.end().await;
        self.bank.close().await;
    }
}

fn change(kept: &Kept, late: &Written, balance: i64, deposited: i64) -> Change {
    Change {
        place: kept.place,
        refuses: kept.refuses.unwrap_or("nothing"),
        refusal: match late {
            Written::Landed => None,
            Written::Refused(why) => Some(why.clone()),
        },
        balance,
        outcome: if balance == deposited { "right" } else { "WRONG: the deposit is lost" },
    }
}

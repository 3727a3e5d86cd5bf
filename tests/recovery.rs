//! Nodes that are lost, restored from an image, copied, given up or replaced, as real nodes and by the real commands.
//! (The protocol's §7 and §9; what is shown here once is shown under every order of events by the search and the storms.)

mod three;

use std::time::Duration;

use tiebreak::ids::Incarnation;
use tiebreak::message::{Kind, Refusal, Report, RoleName, Standing};

use three::{A, B, Setup, Three, W, both_linked, copy, join, tiebreak, told, until_status};

fn adoption(report: &Report) -> Incarnation {
    report.adoption.incarnation
}

#[tokio::test]
async fn a_witness_that_is_restored_from_an_image_counts_as_lost_and_is_taken_in_again() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    let before = adoption(&three.report(A).await);
    let (state, image) = (three.setup.path("w"), three.setup.path("image"));
    three.kill(W).await;
    copy(&state, &image);
    three.run(W).await;
    three.until_paired(A).await;
    three.until(B, "it is linked to the witness", both_linked).await;
    three.kill(W).await;
    copy(&image, &state);
    three.run(W).await;
    let paired = three.until(A, "the witness is taken in as a new one", |report| {
        adoption(report) != before && both_linked(report)
    });
    assert_eq!(paired.await.role, RoleName::Paired);
    // It votes again: with the leader gone, the other one is elected.
    three
        .until(B, "it recognises the new one", |report| adoption(report) != before && both_linked(report))
        .await;
    three.kill(A).await;
    three.until_solo(B).await;
}

#[tokio::test]
async fn a_replica_that_is_restored_from_an_image_counts_as_lost_and_joins_as_a_new_life() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    let (state, image) = (three.setup.path("b"), three.setup.path("image"));
    three.kill(B).await;
    copy(&state, &image);
    three.run(B).await;
    let before = three.until_paired(A).await.others[0].expect("linked").incarnation;
    three.kill(B).await;
    copy(&image, &state);
    three.run(B).await;
    let after = three.until(A, "it joins as another life", |report| {
        report.role == RoleName::Paired && report.others[0].is_some_and(|link| link.incarnation != before)
    });
    after.await;
    // A full member again.
    three.until(B, "it follows", |report| report.standing == Standing::Member && both_linked(report)).await;
    three.kill(A).await;
    three.until_solo(B).await;
}

#[tokio::test]
async fn of_two_machines_with_one_key_and_one_state_the_second_is_turned_away_and_both_are_named() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    let (state, image) = (three.setup.path("b"), three.setup.path("b2"));
    let link = |report: &Report| report.others[0].map(|other| other.link);
    let before = link(&three.report(A).await);
    three.kill(B).await;
    copy(&state, &image);
    three.run(B).await;
    let paired = three.until(A, "it is paired on another link", |report| {
        report.role == RoleName::Paired && report.others[0].is_some() && link(report) != before
    });
    let paired = paired.await;
    three.until(B, "it is linked to both", both_linked).await;
    // Whatever was said on these links before the question has been heard by the time of the answer.
    until_status(&three.setup.file(A), &["well"]).await;
    // The copy runs beside it. It dials only, as a machine behind another address would.
    let mut config = three.setup.replica(B);
    (config.own.state, config.own.listen) = (image, Vec::new());
    let (clone, _serving) = join(config).await;
    // By both it is turned away, and both say of whom there are two.
    loop {
        let (copy, leader) = (clone.report().await.expect("it runs"), three.report(A).await);
        assert!(!copy.acts && copy.others[0].is_none(), "{copy:#?}");
        let is_named = |report: &Report| {
            report.refused.is_some_and(
                |(_, refusal)| matches!(refusal, Refusal::Copied { life, .. } if life.as_str() == "b"),
            )
        };
        if is_named(&copy) && is_named(&leader) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = three.report(A).await;
    assert_eq!((after.role, after.promised), (RoleName::Paired, paired.promised), "nothing else changed");
    until_status(&three.setup.file(A), &["two copies of b run"]).await;
}

#[tokio::test]
async fn with_strict_boot_a_restarted_witness_grants_nothing_before_a_leader_has_validated_it() {
    let mut setup = Setup::new();
    setup.strict_boot = true;
    let mut three = Three::start(setup, Kind::Replicated).await;
    // A pair validates it by itself: and then it confirms.
    three.kill(W).await;
    three.run(W).await;
    three.until_paired(A).await;
    until_status(&three.setup.file(A), &["orders: well"]).await;
    three.kill(B).await;
    three.until_solo(A).await;
    three.run(B).await;
    three.until_paired(A).await;
    // Without a leader nobody can: that is the price, and it is said.
    three.kill(W).await;
    three.kill(A).await;
    three.run(W).await;
    let refused = three.until(B, "it is refused", |report| {
        report.refused.is_some_and(|(by, refusal)| by.as_str() == "w" && refusal == Refusal::Unvalidated)
    });
    assert!(!refused.await.acts);
    until_status(&three.setup.file(B), &["witness, not validated", "strict_boot", "recover"]).await;
    three.run(A).await;
    three.until(A, "nobody leads", |report| !report.acts).await;
}

#[tokio::test]
async fn an_operator_goes_on_without_the_lost_replica_which_begins_again_when_it_comes_back() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    three.kill(B).await;
    three.until_solo(A).await;
    three.kill(A).await;
    // B missed what A acknowledged alone, and is refused.
    three.run(B).await;
    let stale =
        |report: &Report| report.refused.is_some_and(|(_, refusal)| matches!(refusal, Refusal::Stale { .. }));
    let before = three.until(B, "it is refused", stale).await;
    let file = three.setup.file(B);
    // Not while it runs.
    let output = tiebreak(&["recover", "--accept-data-loss"], &file, "orders\n").await;
    assert!(!output.status.success() && told(&output).contains("another process"), "{}", told(&output));
    three.kill(B).await;
    // Not without the name, and not without the flag.
    let ways: [(&[&str], &str); 3] = [
        (&["recover"], "--accept-data-loss"),
        (&["recover", "--accept-data-loss"], "nothing was changed"),
        (&["recover", "--accept-data-loss"], "IT DOES NOT HOLD"),
    ];
    for (arguments, says) in ways {
        let output = tiebreak(arguments, &file, "ordres\n").await;
        assert!(!output.status.success() && told(&output).contains(says), "{}", told(&output));
    }
    let output = tiebreak(&["recover", "--accept-data-loss"], &file, "orders\n").await;
    assert!(output.status.success(), "{}", told(&output));
    three.run(B).await;
    let after = three.until_solo(B).await;
    assert!(after.promised.term.0 >= (2 << 16) && after.promised.term > before.promised.term);
    // The lost one is back, and believes that it is the one that holds everything.
    three.run(A).await;
    let paired = three.until_paired(B).await;
    assert!(paired.token > after.token);
    let returned =
        three.until(A, "it follows as a new life", |report| report.standing == Standing::Member).await;
    assert!(!returned.acts && !returned.sole);
    three.kill(B).await;
    three.until_solo(A).await;
}

#[tokio::test]
async fn a_life_that_was_given_up_hears_of_it_from_the_witness_alone() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    three.kill(B).await;
    three.until_solo(A).await;
    three.kill(A).await;
    let output = tiebreak(&["recover", "--accept-data-loss"], &three.setup.file(B), "orders\n").await;
    assert!(output.status.success(), "{}", told(&output));
    three.run(B).await;
    let solo = three.until_solo(B).await;
    three.until(B, "the witness knows", |report| report.others[1].is_some()).await;
    three.kill(B).await;
    three.run(A).await;
    let blank = three.until(A, "it begins again", |report| report.standing == Standing::Blank).await;
    assert!(!blank.acts && !blank.sole, "sole or not, it stops: {blank:#?}");
    three.run(B).await;
    let paired = three.until_paired(B).await;
    assert!(paired.token > solo.token);
}

#[tokio::test]
async fn a_life_that_was_given_up_while_it_ran_on_hears_of_it_from_the_witness_that_it_is_linked_to() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    three.kill(B).await;
    three.until_solo(A).await;
    three.until(A, "it is linked to the witness", |report| report.others[1].is_some()).await;
    // The operator believes that A is off. It is not, and B reaches the witness only.
    let output = tiebreak(&["recover", "--accept-data-loss"], &three.setup.file(B), "orders\n").await;
    assert!(output.status.success(), "{}", told(&output));
    let mut config = three.setup.replica(B);
    (config.own.listen, config.peer.addresses) = (Vec::new(), Vec::new());
    let (survivor, _serving) = join(config).await;
    let blank = three.until(A, "it begins again", |report| report.standing == Standing::Blank).await;
    assert!(!blank.acts && !blank.sole, "sole or not, it stops: {blank:#?}");
    let mut roles = survivor.roles();
    while !survivor.report().await.expect("it runs").acts {
        roles.next().await.expect("it runs on");
    }
}

#[tokio::test]
async fn each_node_can_be_replaced_by_a_command_but_not_the_one_that_holds_everything_alone() {
    let mut three = Three::start(Setup::new(), Kind::Replicated).await;
    let replace = async |three: &Three, node| tiebreak(&["replace"], &three.setup.file(node), "").await;
    // The witness, while both replicas run.
    let output = replace(&three, W).await;
    assert!(!output.status.success() && told(&output).contains("another process"), "{}", told(&output));
    let before = adoption(&three.report(A).await);
    three.kill(W).await;
    let output = replace(&three, W).await;
    assert!(output.status.success() && told(&output).contains("ledger.replaced-1"), "{}", told(&output));
    three.run(W).await;
    three.until(A, "it is taken in", |report| adoption(report) != before && both_linked(report)).await;
    // A replica whose ledger is damaged.
    three.kill(B).await;
    three.until_solo(A).await;
    let ledger = three.setup.path("b").join("ledger");
    std::fs::write(&ledger, vec![0; 100]).expect("written");
    let output = replace(&three, B).await;
    assert!(!output.status.success() && told(&output).contains("not a ledger"), "{}", told(&output));
    let bytes = std::fs::read(three.setup.path("a").join("ledger")).expect("a ledger");
    std::fs::write(&ledger, &bytes[..bytes.len() / 2]).expect("written");
    let output = replace(&three, B).await;
    assert!(output.status.success(), "{}", told(&output));
    three.run(B).await;
    three.until_paired(A).await;
    // The one that went on alone.
    three.kill(B).await;
    three.until_solo(A).await;
    three.kill(A).await;
    let output = replace(&three, A).await;
    assert!(!output.status.success() && told(&output).contains("holds everything"), "{}", told(&output));
    three.run(A).await;
    three.until_solo(A).await;
}

#[tokio::test]
async fn a_leadership_cluster_leads_by_the_lease_of_any_one_other_voter() {
    let mut three = Three::start(Setup::new(), Kind::Leadership).await;
    let first = three.report(A).await;
    until_status(&three.setup.file(A), &["orders (leadership): well"]).await;
    // The witness dies: the lease of the peer is enough.
    three.kill(W).await;
    three.until(A, "the witness is gone", |report| report.others[1].is_none()).await;
    assert!(three.report(A).await.acts);
    three.run(W).await;
    three.until_paired(A).await;
    // The peer dies: the lease of the witness is enough, in the same term, and nobody went on alone.
    three.kill(B).await;
    let blocked = |report: &Report| report.role == RoleName::Blocked && report.acts;
    let alone = three.until(A, "it leads by the witness's lease", blocked).await;
    assert_eq!((alone.token, alone.sole), (first.token, false));
    // Both fail one after the other: whoever comes back can be elected, for there is nothing that it could miss.
    three.kill(A).await;
    three.run(B).await;
    let second = three.until(B, "it leads", |report| report.acts).await;
    assert!(second.token > first.token);
    three.run(A).await;
    three.until_paired(B).await;
    // A new life of the peer is taken in, and can lead in its turn.
    three.kill(A).await;
    let output = tiebreak(&["replace"], &three.setup.file(A), "").await;
    assert!(output.status.success(), "{}", told(&output));
    three.run(A).await;
    let third = three.until_paired(B).await;
    three.kill(B).await;
    let fourth = three.until(A, "it leads", |report| report.acts).await;
    assert!(fourth.token > third.token);
}

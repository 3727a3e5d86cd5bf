//! The connections of a witness: each carries the requests of one replica to its voter.

use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

use crate::edge::clock::Clock;
use crate::edge::quic::{CloseCode, Connection, Endpoint};
use crate::ids::{Incarnation, LinkId};
use crate::message::{Request, Sender};
use crate::wire;

use super::WitnessFigures;
use super::seats::{Seat, Seats};
use super::voters::{Arrival, Waiting, lock};

pub(super) async fn accept(
    endpoint: Endpoint,
    seats: Seats,
    queue: mpsc::Sender<Arrival>,
    figures: Arc<Mutex<WitnessFigures>>,
) {
    let mut links = 0;
    while let Some(connection) = endpoint.accept().await {
        links += 1;
        let link = LinkId(links);
        let Some(seat) = seats.of(&connection.fingerprint()) else {
            connection.close(CloseCode::NOT_PINNED, "this key is no longer pinned here");
            continue;
        };
        let (queue, pace) = (queue.clone(), Pace { seats: seats.clone(), figures: figures.clone() });
        tokio::spawn(async move {
            let why = serve(&connection, link, seat, &queue, &pace).await;
            connection.close(CloseCode::MISBEHAVED, &why);
            // If the queue is gone, so is the voter.
            let _ = queue.send(Arrival::Over { cluster: seat.cluster, link }).await;
        });
    }
}

/// Holds back a replica that asks too often: its next request is not looked at before its turn, and further ones wait
/// at its own end. Nothing is dropped.
struct Pace {
    seats: Seats,
    figures: Arc<Mutex<WitnessFigures>>,
}

impl Pace {
    async fn keep(&self, seat: Seat) {
        let wait = self.seats.asks(seat, Clock.now());
        if !wait.is_zero() {
            lock(&self.figures).held_back += 1;
            Clock.after(wait).await;
        }
    }
}

/// Requests of one connection, one after the other. What ended it.
async fn serve(
    connection: &Connection,
    link: LinkId,
    seat: Seat,
    queue: &mpsc::Sender<Arrival>,
    pace: &Pace,
) -> String {
    let mut is_link = false;
    let mut told_version = false;
    loop {
        let (bytes, responder) = match connection.next_request().await {
            Ok(request) => request,
            Err(error) => return error.to_string(),
        };
        pace.keep(seat).await;
        let (from, request) = match wire::decode_request(&bytes) {
            Ok(decoded) => decoded,
            Err(wire::WireError::Version { got }) => {
                let nobody = Sender {
                    cluster: crate::ids::ClusterId::NIL,
                    voter: crate::ids::VoterId { node: seat.node, incarnation: Incarnation::NIL },
                    boot: crate::ids::Boot(0),
                    term: crate::ids::Term::ZERO,
                };
                if !std::mem::replace(&mut told_version, true) {
                    tracing::warn!(cluster = %seat.cluster, node = %seat.node, version = got, "speaks another version");
                }
                let _ = responder.answer(&wire::encode_reply(&nobody, &wire::versions())).await;
                continue;
            }
            Err(error) => return error.to_string(),
        };
        if request != Request::Status && from.voter.node != seat.node {
            return format!(
                "this key speaks as {} of {} here, not as {}",
                seat.node, seat.cluster, from.voter.node
            );
        }
        let needs_link = !matches!(request, Request::Status | Request::Hello(_));
        if needs_link && !is_link {
            return "a connection begins with a greeting".into();
        }
        if let Request::Hello(hello) = &request
            && hello.name != seat.cluster
        {
            return format!("this key speaks for cluster {} here, not for {}", seat.cluster, hello.name);
        }
        let (linked, told) = oneshot::channel();
        let connection = connection.clone();
        let waiting = Waiting { seat, connection, link, from, request, responder, linked };
        if queue.send(Arrival::Asked(Box::new(waiting))).await.is_err() {
            return "the witness is stopped".into();
        }
        match told.await {
            Ok(greeted) => is_link |= greeted,
            Err(_) => return "the witness is stopped".into(),
        }
    }
}

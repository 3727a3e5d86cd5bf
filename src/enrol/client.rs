//! The side that asks.

use tokio::time::timeout;

use crate::edge::identity::{Fingerprint, Identity};
use crate::edge::quic::{BindError, CloseCode, Endpoint, HostPort};
use crate::limits::JOIN_TIMEOUT;
use crate::wire;

use super::message::{Denial, Request, Response};

/// Why there is no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Not reached, or another key answers there. Whether the request was taken is not known: ask again.
    #[error("the witness cannot be asked: {0}")]
    Unreached(String),
    /// It was reached, and says no. Nothing was changed.
    #[error("{0}")]
    Denied(Denial),
}

/// Asks the witness with this key, and no other.
///
/// # Errors
/// If it is not reached, or says no.
pub async fn ask(
    identity: &Identity,
    at: &[HostPort],
    key: &[Fingerprint],
    request: &Request,
) -> Result<Response, AskError> {
    let unreached = |error: &dyn std::fmt::Display| AskError::Unreached(error.to_string());
    let endpoint = Endpoint::joining(identity)?;
    let asked = async {
        let connection = endpoint.dial(at, key).await.map_err(|error| unreached(&error))?;
        let bytes = connection.ask(&wire::encode_plain(request)).await.map_err(|error| unreached(&error))?;
        connection.close(CloseCode::DONE, "answered");
        wire::decode_plain(&bytes).map_err(|error| unreached(&error))
    };
    let response = timeout(JOIN_TIMEOUT, asked)
        .await
        .unwrap_or_else(|_| Err(AskError::Unreached("it does not answer in time".into())));
    endpoint.shutdown("done").await;
    match response? {
        Response::Denied(denial) => Err(AskError::Denied(denial)),
        response => Ok(response),
    }
}

//! Object stores as the resource: what a fenced writer guarantees, and whether a store that lies is found out.

#![cfg(feature = "object-store")]
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::fmt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tiebreak::fence::{FencedStore, ObjectError, probe};
use tiebreak::ids::Token;

const DEADLINE: Duration = Duration::from_secs(60);

/// A store in memory that can be told to ignore one condition, or to let a writer wait between its look and its put.
#[derive(Debug, Default)]
struct Strange {
    store: InMemory,
    ignores_create: bool,
    ignores_update: bool,
    /// Its ETag is a hash of the contents, as S3's is.
    hashes: bool,
    /// Each put lets others go first.
    yields: bool,
    waits: AtomicBool,
    go: tokio::sync::Notify,
    arrived: tokio::sync::Notify,
}

impl fmt::Display for Strange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Strange")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Strange {
    async fn put_opts(
        &self,
        place: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.yields {
            tokio::task::yield_now().await;
        }
        if self.waits.swap(false, Ordering::SeqCst) {
            self.arrived.notify_one();
            self.go.notified().await;
        }
        let ignored = match options.mode {
            PutMode::Create => self.ignores_create,
            PutMode::Update(_) => self.ignores_update,
            PutMode::Overwrite => false,
        };
        if ignored {
            options.mode = PutMode::Overwrite;
        }
        if let (true, PutMode::Update(wanted)) = (self.hashes, &options.mode) {
            // Nothing is awaited between this look and the write, and the test has one thread.
            let now = self.store.get(place).await?.bytes().await?;
            if wanted.e_tag != Some(hash(&now)) {
                let source = "the condition does not hold".into();
                return Err(object_store::Error::Precondition { path: place.to_string(), source });
            }
            options.mode = PutMode::Overwrite;
        }
        self.store.put_opts(place, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        place: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(place, options).await
    }

    async fn get_opts(&self, place: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.store.get_opts(place, options).await?;
        if self.hashes {
            let whole = self.store.get(place).await?.bytes().await?;
            found.meta.e_tag = Some(hash(&whole));
        }
        Ok(found)
    }

    fn delete_stream(&self, places: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(places)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

fn hash(contents: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn writer(store: &Arc<impl ObjectStore>, token: u64) -> FencedStore {
    FencedStore::new(store.clone(), Token(token))
}

/// A put whose writer is paused between its look and its put while something else happens.
async fn put_around(
    store: &Arc<Strange>,
    token: u64,
    place: &Path,
    meanwhile: impl Future<Output = ()>,
) -> std::result::Result<(), ObjectError> {
    store.waits.store(true, Ordering::SeqCst);
    let (paused, there) = (writer(store, token), place.clone());
    let late = tokio::spawn(async move { paused.put(&there, "late".into()).await });
    store.arrived.notified().await;
    meanwhile.await;
    store.go.notify_one();
    late.await.expect("no panic")
}

async fn a_stale_writer_is_refused(store: Arc<dyn ObjectStore>, place: &Path) {
    let at = |token| FencedStore::new(store.clone(), Token(token));
    at(5).put(place, "from 5".into()).await.expect("the first");
    at(5).put(place, "from 5 again".into()).await.expect("the same leader");
    at(7).put(place, "from 7".into()).await.expect("the next leader");
    let error = at(5).put(place, "late".into()).await.expect_err("it was replaced");
    let ObjectError::Stale { stale, .. } = &error else { panic!("{error}") };
    assert_eq!((stale.offered, stale.highest), (Token(5), Token(7)));
    assert_eq!(at(7).get(place).await.expect("it is there"), b"from 7");
    assert!(matches!(at(5).get(place).await, Err(ObjectError::Stale { .. })));
    assert_eq!(at(9).take_over(place).await.expect("it is there"), b"from 7");
    assert!(
        matches!(at(7).put(place, "late".into()).await, Err(ObjectError::Stale { .. })),
        "without a write of 9's own"
    );
}

#[tokio::test]
async fn a_lower_token_is_refused_and_a_new_leader_can_take_over_what_it_has_not_written() {
    a_stale_writer_is_refused(Arc::new(InMemory::new()), &"orders/1".into()).await;
}

/// Shows: the gap between the look and the put is closed by the condition: a writer that is paused there writes nothing when
/// it goes on, although its token was good when it looked.
#[tokio::test]
async fn a_writer_that_is_paused_between_look_and_put_writes_nothing_afterwards() {
    for exists in [false, true] {
        let store = Arc::new(Strange::default());
        let place = Path::from("orders/1");
        if exists {
            writer(&store, 4).put(&place, "before".into()).await.expect("the first");
        }
        let next = async { writer(&store, 6).put(&place, "from 6".into()).await.expect("the next leader") };
        let late = put_around(&store, 5, &place, next).await;
        assert!(matches!(late, Err(ObjectError::Stale { .. })), "exists: {exists}: {late:?}");
        assert_eq!(writer(&store, 6).get(&place).await.expect("it is there"), b"from 6");
    }
}

/// Shows: the same where an ETag is a hash of the contents and the next leader writes the same bytes again, by taking over or
/// by a put: each version has an ETag of its own all the same.
#[tokio::test]
async fn a_paused_writer_does_not_get_through_after_a_write_of_equal_bytes() {
    for takes_over in [true, false] {
        let store = Arc::new(Strange { hashes: true, ..Strange::default() });
        let place = Path::from("orders/1");
        writer(&store, 3).put(&place, "the same".into()).await.expect("the first");
        let next = async {
            if takes_over {
                writer(&store, 4).take_over(&place).await.expect("it is there");
            } else {
                writer(&store, 4).put(&place, "the same".into()).await.expect("the next leader");
            }
        };
        let late = put_around(&store, 3, &place, next).await;
        assert!(matches!(late, Err(ObjectError::Stale { .. })), "takes over: {takes_over}: {late:?}");
        assert_eq!(writer(&store, 4).get(&place).await.expect("it is there"), b"the same");
    }
}

#[tokio::test]
async fn what_others_have_written_without_a_token_is_left_alone() {
    let store = Arc::new(InMemory::new());
    let place = Path::from("orders/1");
    store.put(&place, "foreign".into()).await.expect("written");
    let error = writer(&store, 5).put(&place, "mine".into()).await.expect_err("foreign");
    assert!(
        matches!(error, ObjectError::Foreign { .. }) && error.to_string().contains("orders/1"),
        "{error}"
    );
}

#[tokio::test]
async fn among_concurrent_writers_the_highest_token_stays() {
    let store = Arc::new(Strange { yields: true, ..Strange::default() });
    let place = Path::from("orders/1");
    // The highest is in the midst of them, and each lets the others look and write between its own look and write.
    let tokens = (1..=24_u64).map(|number| number * 7 % 25);
    let puts = tokens.map(|token| {
        let (writer, place) = (writer(&store, token), place.clone());
        tokio::spawn(async move { (token, writer.put(&place, token.to_string().into()).await) })
    });
    let ended = join_all(puts).await;
    let highest = ended.iter().flatten().find(|(token, _)| *token == 24).expect("no panic");
    assert!(highest.1.is_ok(), "nobody is above it: {highest:?}");
    assert_eq!(writer(&store, 24).get(&place).await.expect("it is there"), b"24");
}

#[tokio::test]
async fn the_probe_tells_a_store_that_lies_from_one_that_does_not_and_leaves_nothing_behind() {
    for (ignores_create, ignores_update) in [(false, false), (true, false), (false, true), (true, true)] {
        let store = Arc::new(Strange { ignores_create, ignores_update, ..Strange::default() });
        let probed = probe(store.clone(), &"some/prefix".into(), "probe-1").await.expect("it can be used");
        assert_eq!(probed.is_good(), !ignores_create && !ignores_update, "{probed:?}");
        let says = |words: &str| probed.wrong.iter().any(|wrong| wrong.contains(words));
        assert_eq!(says("If-None-Match: *: of 16"), ignores_create, "{probed:?}");
        assert_eq!(says("If-Match: of 16"), ignores_update, "{probed:?}");
        let left = store.list_with_delimiter(Some(&"some/prefix".into())).await.expect("listed");
        assert!(left.objects.is_empty(), "{left:?}");
    }
}

/// A server that speaks as S3 does.
struct Moto(Child, String);

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Moto {
    /// `None`, said plainly, where there is none.
    fn start() -> Option<Moto> {
        let program = std::env::var("TIEBREAK_MOTO").unwrap_or_else(|_| "moto_server".into());
        let listener =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a port");
        let mut command = Command::new(&program);
        command.args(["-H", "127.0.0.1", "-p", &listener.port().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!(
                "skipped: there is no {program} here (pip install 'moto[server]', or set TIEBREAK_MOTO)"
            );
            return None;
        };
        let moto = Moto(child, format!("http://{listener}"));
        let deadline = Instant::now() + DEADLINE;
        while std::net::TcpStream::connect(listener).is_err() {
            assert!(Instant::now() < deadline, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(moto)
    }

    fn settings(&self) -> [(&'static str, &str); 5] {
        [
            ("aws_access_key_id", "test"),
            ("aws_secret_access_key", "test"),
            ("aws_region", "us-east-1"),
            ("aws_endpoint", &self.1),
            ("aws_allow_http", "true"),
        ]
    }

    /// The same, as commands take it.
    fn environment(&self) -> [(String, &str); 5] {
        self.settings().map(|(name, value)| (name.to_ascii_uppercase(), value))
    }

    /// Makes a bucket: a plain request does.
    fn bucket(&self, name: &str) {
        use std::io::{Read, Write};
        let address = self.1.strip_prefix("http://").expect("so made");
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        let request = format!(
            "PUT /{name} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_as_s3_does_refuses_the_stale_writer_and_the_command_says_yes() {
    let Some(moto) = Moto::start() else { return };
    moto.bucket("orders");
    let url = "s3://orders/some/prefix";
    let (store, prefix) =
        object_store::parse_url_opts(&url.parse().expect("an address"), moto.settings()).expect("a store");
    a_stale_writer_is_refused(Arc::from(store), &prefix.join("1")).await;
    let (missing, _) =
        object_store::parse_url_opts(&"s3://no-such-bucket".parse().expect("an address"), moto.settings())
            .expect("a store");
    let put = FencedStore::new(Arc::from(missing), Token(5)).put(&"1".into(), "lost".into()).await;
    assert!(matches!(put, Err(ObjectError::Store { .. })), "{put:?}");
    let run = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(["guard", "probe", url]);
        command.envs(moto.environment());
        let output = command.output().expect("the binary runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = run(url);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("yes: s3://orders"), "{said}");
    let (code, _) = run("s3://no-such-bucket/x");
    assert_eq!(code, Some(3), "a store that cannot be used is neither yes nor no");
}

#[test]
fn an_object_that_is_written_on_condition_refuses_the_late_write_and_one_that_is_simply_put_takes_it() {
    let Some(moto) = Moto::start() else { return };
    moto.bucket("balances");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(["demo", "fencing", "--json", "--s3", "s3://balances/some/prefix"]);
    let output = command.envs(moto.environment()).output().expect("the binary runs");
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}\n{errors}", output.status);
    let lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let objects: Vec<(String, i64)> = lines
        .filter(|line| line["place"] == "an object")
        .map(|line| {
            (line["refuses"].as_str().unwrap_or("").to_owned(), line["balance"].as_i64().unwrap_or(0))
        })
        .collect();
    assert_eq!(objects, [("nothing".to_owned(), 70), ("fence::FencedStore".to_owned(), 150)]);
}

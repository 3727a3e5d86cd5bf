//! Who a node is: one key pair, known to others by the fingerprint of its public half.
//!
//! The X.509 certificate around the key is only the envelope that TLS asks for. Its names and dates are never
//! looked at: what counts is which fingerprints are pinned, as with `authorized_keys`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ring::{digest, hkdf};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::clock::random_u64;

/// What a printed fingerprint begins with; the 1 is the version of the scheme.
const PREFIX: &str = "tb1:";
/// A key file holds one key and one certificate, about 1 kB.
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;

/// SHA-256 of a public key (the DER of its SubjectPublicKeyInfo), printed as `tb1:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Why a text is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// Something else.
    #[error("a fingerprint begins with `tb1:`; `tiebreak keys show FILE` prints the one of a key file")]
    Prefix,
    /// Cut off, or two of them pasted together.
    #[error("a fingerprint has 64 hexadecimal digits after `tb1:`, this one has {0} characters")]
    Length(usize),
    /// Not a digit, or an upper-case one.
    #[error("a fingerprint is written with the digits 0-9 and a-f; {0:?} is none of them")]
    Digit(char),
}

impl Fingerprint {
    /// The fingerprint of the key inside a certificate.
    ///
    /// # Errors
    /// If the bytes are not a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Fingerprint, rustls::Error> {
        let spki = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        let hash = digest::digest(&digest::SHA256, &spki);
        Ok(Fingerprint(hash.as_ref().try_into().expect("SHA-256 has 32 bytes")))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    /// Takes the one spelling that is printed, so that two configurations can be compared as text.
    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits = text.strip_prefix(PREFIX).ok_or(FingerprintError::Prefix)?;
        let digit = |c: char| c.to_digit(16).filter(|_| !c.is_ascii_uppercase());
        if let Some(bad) = digits.chars().find(|c| digit(*c).is_none()) {
            return Err(FingerprintError::Digit(bad));
        }
        if digits.len() != 64 {
            return Err(FingerprintError::Length(digits.len()));
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).expect("hexadecimal digits are ASCII");
            *byte = u8::from_str_radix(pair, 16).expect("two hexadecimal digits make a byte");
        }
        Ok(Fingerprint(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What is wrong with a key file, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A key is never overwritten: whoever pinned it would be locked out.
    #[error(
        "{0} exists and a key is never overwritten; choose another name, or move the old file away \
         once nobody pins it"
    )]
    Exists(PathBuf),
    /// The file could not be written.
    #[error("cannot create the key file {0}: {1}; check that its directory exists and can be written")]
    Create(PathBuf, #[source] io::Error),
    /// There is none.
    #[error("there is no key file {path}; make one with `tiebreak keys new {path}`", path = .0.display())]
    Missing(PathBuf),
    /// The file could not be read.
    #[error("cannot read the key file {0}: {1}; it has to be a file that this user may read")]
    Read(PathBuf, #[source] io::Error),
    /// Others could have read it.
    #[error(
        "the private key in {path} can be read or changed by others (mode {1:04o}); run `chmod 600 {path}`, and \
         make a new key if somebody may have taken it",
        path = .0.display()
    )]
    Exposed(PathBuf, u32),
    /// Not what `keys new` writes.
    #[error("{0} is not a key file: {1}; `tiebreak keys new` makes one with a private key and a certificate")]
    Content(PathBuf, String),
    /// The cryptographic library refused.
    #[error("cannot make a key: {0}")]
    Generate(String),
}

/// A node's key pair with its certificate. Cheap to clone; never printed.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    root: hkdf::Prk,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

impl Identity {
    /// A new identity that no file keeps.
    ///
    /// # Errors
    /// If the cryptographic library cannot draw a key.
    pub fn generate() -> Result<Identity, IdentityError> {
        Identity::from_pem(generate_pem()?.as_bytes(), Path::new("a new key"))
    }

    /// Makes a new identity and keeps it in a new file that only its owner can read (mode 0600). The file
    /// appears whole or not at all, and never takes the place of another.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Identity, IdentityError> {
        let pem = generate_pem()?;
        let identity = Identity::from_pem(pem.as_bytes(), path)?;
        write_new(path, pem.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => IdentityError::Exists(path.into()),
            _ => IdentityError::Create(path.into(), error),
        })?;
        Ok(identity)
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// If it is missing, can be read by others, or is not a key file.
    pub fn load(path: &Path) -> Result<Identity, IdentityError> {
        let read = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => IdentityError::Missing(path.into()),
            _ => IdentityError::Read(path.into(), error),
        };
        let file = File::open(path).map_err(read)?;
        // Asked of the open file, so that the answer is about the bytes that are read.
        let about = file.metadata().map_err(read)?;
        if !about.is_file() {
            return Err(IdentityError::Content(path.into(), "it is not a regular file".into()));
        }
        if about.mode() & 0o077 != 0 {
            return Err(IdentityError::Exposed(path.into(), about.mode() & 0o7777));
        }
        let mut pem = Vec::new();
        file.take(KEY_FILE_BYTES_MAX).read_to_end(&mut pem).map_err(read)?;
        Identity::from_pem(&pem, path)
    }

    fn from_pem(pem: &[u8], path: &Path) -> Result<Identity, IdentityError> {
        let content = |why: String| IdentityError::Content(path.into(), why);
        let key =
            PrivateKeyDer::from_pem_slice(pem).map_err(|e| content(format!("no private key in it ({e})")))?;
        let certificate = CertificateDer::from_pem_slice(pem)
            .map_err(|e| content(format!("no certificate in it ({e})")))?;
        let fingerprint = Fingerprint::of(&certificate)
            .map_err(|e| content(format!("its certificate is unreadable ({e})")))?;
        let signer = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|e| content(format!("its private key is of no known kind ({e})")))?;
        let certified = CertifiedKey::new(vec![certificate], signer);
        certified
            .keys_match()
            .map_err(|_| content("its certificate belongs to another private key".into()))?;
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tiebreak/1").extract(key.secret_der());
        Ok(Identity { certified: Arc::new(certified), fingerprint, root })
    }

    /// The fingerprint by which others pin this node.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    /// A secret of this node for one purpose: the same after each restart, and worth nothing for another purpose.
    pub(crate) fn secret<const N: usize>(&self, purpose: &str) -> [u8; N] {
        struct Bytes(usize);
        impl hkdf::KeyType for Bytes {
            fn len(&self) -> usize {
                self.0
            }
        }
        let mut secret = [0; N];
        let info = [purpose.as_bytes()];
        self.root
            .expand(&info, Bytes(N))
            .and_then(|okm| okm.fill(&mut secret))
            .expect("HKDF gives up to 8160 bytes");
        secret
    }
}

/// Private key and certificate as PEM. Ed25519: small, fast, and no randomness is drawn when signing.
fn generate_pem() -> Result<String, IdentityError> {
    let failed = |error: rcgen::Error| IdentityError::Generate(error.to_string());
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(failed)?;
    let mut envelope = rcgen::CertificateParams::default();
    // Far enough for checkers other than ours; ours looks at the key alone.
    envelope.not_before = rcgen::date_time_ymd(1975, 1, 1);
    envelope.not_after = rcgen::date_time_ymd(4096, 1, 1);
    envelope.distinguished_name.push(rcgen::DnType::CommonName, "tiebreak node");
    let certificate = envelope.self_signed(&key).map_err(failed)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

/// Writes beside the target, syncs, and links into place: a link, unlike a rename, fails if the name is taken.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let draft = directory.join(format!(".tiebreak-key-{:016x}", random_u64()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::hard_link(&draft, path)
    })();
    // After an early failure there may be no draft; what matters is the first error.
    let _ = fs::remove_file(&draft);
    written?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_fingerprint_has_one_spelling() {
        let print = Fingerprint([0xab; 32]);
        assert_eq!(print.to_string().parse(), Ok(print));
        assert_eq!(print.to_string().to_uppercase().parse::<Fingerprint>(), Err(FingerprintError::Prefix));
        assert_eq!(
            format!("tb1:{}", "AB".repeat(32)).parse::<Fingerprint>(),
            Err(FingerprintError::Digit('A'))
        );
        assert_eq!("tb1:ab".parse::<Fingerprint>(), Err(FingerprintError::Length(2)));
        assert_eq!("tb1:é".parse::<Fingerprint>(), Err(FingerprintError::Digit('é')));
        assert_eq!("".parse::<Fingerprint>(), Err(FingerprintError::Prefix));
    }

    #[test]
    fn a_key_file_survives_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        let made = Identity::create(&path).unwrap();
        assert_eq!(Identity::load(&path).unwrap().fingerprint(), made.fingerprint());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let before = fs::read(&path).unwrap();
        let error = Identity::create(&path).unwrap_err();
        assert!(matches!(error, IdentityError::Exists(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
        // Nothing is left beside it.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        Identity::create(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Identity::load(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_key_is_named_with_its_cause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        let load = |bytes: &[u8]| {
            let _ = fs::remove_file(&path);
            write_new(&path, bytes).unwrap();
            Identity::load(&path).unwrap_err().to_string()
        };
        let (one, two) = (generate_pem().unwrap(), generate_pem().unwrap());
        let split = |pem: &str| pem.find("-----BEGIN CERT").unwrap();
        assert!(load(b"hello").contains("no private key"));
        assert!(load(&one.as_bytes()[..split(&one)]).contains("no certificate"));
        let mixed = format!("{}{}", &one[..split(&one)], &two[split(&two)..]);
        assert!(load(mixed.as_bytes()).contains("another private key"));
        fs::remove_file(&path).unwrap();
        assert!(Identity::load(&path).unwrap_err().to_string().contains("tiebreak keys new"));
    }

    #[test]
    fn secrets_differ_by_purpose_and_by_node_and_survive_a_restart() {
        let pem = [generate_pem().unwrap(), generate_pem().unwrap()];
        let [one, again, two] =
            [0, 0, 1].map(|i: usize| Identity::from_pem(pem[i].as_bytes(), Path::new("x")).unwrap());
        assert_eq!(one.secret::<32>("x"), again.secret::<32>("x"));
        assert_ne!(one.secret::<32>("x"), one.secret::<32>("y"));
        assert_ne!(one.secret::<32>("x"), two.secret::<32>("x"));
    }
}

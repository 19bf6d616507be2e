use std::fmt;
use std::path::PathBuf;

use crate::{Error, Result};

/// `etcd://[user[:password]@]host:port[,host:port]/job[?ca=FILE&cert=FILE&key=FILE]`.
///
/// With any of the three files, connections are encrypted: `ca` tells who signed the servers' certificates, `cert` and `key` who
/// the client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdUrl {
    /// `host:port` each.
    pub hosts: Vec<String>,
    pub job: String,
    pub user: Option<(String, Secret)>,
    pub ca: Option<PathBuf>,
    /// A certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A password. Shown as `***`, whatever shows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// To be given to the client, and nobody else.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Without secrets.
impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.hosts.join(","), self.job)
    }
}

impl EtcdUrl {
    /// Refuses what is no such URL. The message says what is wrong and repeats nothing that could be a secret.
    pub fn parse(url: &str) -> Result<Self> {
        const FORM: &str =
            "give etcd://[user:password@]host:port[,host:port]/job[?ca=FILE&cert=FILE&key=FILE]";
        let refuse = |what: &str| Error::Invalid(format!("not the URL of a coordinator: {what}; {FORM}"));
        let rest = url.strip_prefix("etcd://").ok_or_else(|| {
            let scheme = url.split_once("://").map_or("nothing", |(scheme, _)| scheme);
            let is_word = scheme.chars().all(|letter| letter.is_ascii_alphanumeric());
            refuse(&format!("it begins with {}", if is_word { scheme } else { "something else" }))
        })?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, job) = rest.split_once('/').ok_or_else(|| refuse("it names no job"))?;
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name), Secret(decoded(password)))
        });
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if job.is_empty() || !job.chars().all(is_name) {
            return Err(refuse("a job's name has letters, digits, -, _ and . and at least one of them"));
        }
        let mut url = Self {
            hosts: hosts.split(',').map(str::to_owned).collect(),
            job: job.to_owned(),
            user,
            ca: None,
            identity: None,
        };
        for host in &url.hosts {
            let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if host.starts_with(':') || port.is_none() {
                return Err(refuse(&format!("{host:?} is no host with a port, such as localhost:2379")));
            }
        }
        let (mut cert, mut key) = (None, None);
        for option in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = Some(PathBuf::from(decoded(value)));
            match name {
                "ca" => url.ca = value,
                "cert" => cert = value,
                "key" => key = value,
                _ => return Err(refuse(&format!("there is no option {name:?}"))),
            }
        }
        url.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(refuse("cert and key go together")),
        };
        Ok(url)
    }

    /// Whether connections are encrypted.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    pub fn is_encrypted(&self) -> bool {
        self.ca.is_some() || self.identity.is_some()
    }
}

/// `%40` is `@`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = EtcdUrl::parse("etcd://localhost:2379/job").unwrap();
        assert_eq!((url.hosts.as_slice(), url.job.as_str()), (&["localhost:2379".to_owned()][..], "job"));
        assert!(url.user.is_none() && !url.is_encrypted());

        let url = EtcdUrl::parse("etcd://me:p%40ss:w@a:1,b:2/run-7.x?ca=/c%20a&cert=c&key=k").unwrap();
        assert_eq!(url.hosts, ["a:1", "b:2"]);
        assert_eq!(url.user, Some(("me".to_owned(), Secret("p@ss:w".to_owned()))));
        assert_eq!(url.ca, Some(PathBuf::from("/c a")));
        assert_eq!(url.identity, Some(("c".into(), "k".into())));
        assert_eq!(url.to_string(), "etcd://a:1,b:2/run-7.x");
        assert!(!format!("{url:?}").contains("p@ss"), "{url:?}");
    }

    #[test]
    fn what_is_none_is_refused_without_its_secrets() {
        let wrong = [
            ("http://h:1/j", "begins with http"),
            ("hunter2", "begins with nothing"),
            ("etcd://h:1", "names no job"),
            ("etcd://h:1/", "a job's name"),
            ("etcd://h:1/a/b", "a job's name"),
            ("etcd://h/j", "\"h\" is no host with a port"),
            ("etcd://h:99999/j", "is no host with a port"),
            ("etcd://me:hunter2@h/j", "\"h\" is no host"),
            ("etcd://h:1,/j", "is no host"),
            ("etcd://h:1/j?cert=x", "cert and key go together"),
            ("etcd://h:1/j?pass=hunter2", "no option \"pass\""),
        ];
        for (url, words) in wrong {
            let message = EtcdUrl::parse(url).unwrap_err().to_string();
            assert!(message.contains(words), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

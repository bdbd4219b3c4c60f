//! A real HTTP server on loopback that can misbehave on purpose, and stores to use it with.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ruvllm_store::{Catalogue, CatalogueEntry, Event, HubConfig, HubFile, PinnedFile, PipConfig, Source, StoreConfig};
use sha2::{Digest, Sha256};

#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte asked for, and the last one if it is not the file's last.
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }

    pub fn range_start(&self) -> Option<usize> {
        Some(self.range()?.0)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub cut_after: Option<usize>,
    /// Keeps silent for this long after the bytes before the cut.
    pub stall: Duration,
    pub without_length: bool,
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    pub fn redirect(to: &str) -> Reply {
        Reply::status(302).with("Location", to)
    }

    pub fn with(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn cut_after(mut self, bytes: usize) -> Reply {
        self.cut_after = Some(bytes);
        self
    }

    /// The whole file, or the rest of it that was asked for.
    pub fn file(request: &Request, content: &[u8], etag: &str) -> Reply {
        let whole = Reply { status: 200, body: content.to_vec(), ..Reply::default() }.with("ETag", etag);
        let still_the_same = request.header("if-range").is_none_or(|tag| tag == etag);
        match request.range() {
            Some((first, _)) if first >= content.len() => Reply::status(416),
            Some((first, last)) if still_the_same => {
                let last = last.unwrap_or(usize::MAX).min(content.len() - 1);
                Reply { status: 206, body: content[first..=last].to_vec(), ..Reply::default() }
                    .with("ETag", etag)
                    .with("Content-Range", &format!("bytes {first}-{last}/{}", content.len()))
            }
            _ => whole,
        }
    }
}

type Handler = dyn Fn(&Request, usize) -> Reply + Send + Sync;

pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `handler` gets each request and how many came before it.
    pub fn start(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let handler: Arc<Handler> = Arc::new(handler);
        let shared = log.clone();
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (handler.clone(), shared.clone());
                thread::spawn(move || serve(stream, &*handler, &log));
            }
        });
        Server { url, log }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let headers = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let request = Request { path, headers };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let reply = handler(&request, before);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if !reply.without_length {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    let sent = reply.cut_after.unwrap_or(reply.body.len()).min(reply.body.len());
    stream.write_all(&reply.body[..sent]).ok()?;
    stream.flush().ok()?;
    thread::sleep(reply.stall);
    Some(())
}

/// Not compressible and different at every place, so that a byte too many or too few shows.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    b"GGUF".iter().copied().chain(std::iter::repeat_with(&mut next)).take(bytes).collect()
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub const HUB_PATH: &str = "/owner/repo/resolve/main/toy.gguf";

pub fn hub_source() -> Source {
    Source::Hub(HubFile { repo: "owner/repo".to_owned(), revision: "main".to_owned(), file: "toy.gguf".to_owned() })
}

/// A catalogue with the one model `toy`.
pub fn toy(content: &[u8], sources: Vec<Source>) -> Catalogue {
    Catalogue {
        entries: vec![CatalogueEntry {
            name: "toy".to_owned(),
            aliases: vec!["plaything".to_owned()],
            description: "a toy".to_owned(),
            licence: "MIT".to_owned(),
            files: vec![PinnedFile::new("toy.gguf", content.len() as u64, &sha256(content))],
            offers: sources.into_iter().map(|source| vec![source]).collect(),
        }],
    }
}

/// Longer than anything here takes on the busiest machine, so that a test that hangs fails instead.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Retries at once, so that tests are quick. Where a test is about a timeout it sets a short one itself: a busy machine
/// must not make others run into it.
pub fn config(home: &Path, endpoint: &str, catalogue: Catalogue) -> StoreConfig {
    StoreConfig {
        ollama: None,
        home: home.to_owned(),
        shared: Vec::new(),
        catalogue,
        file_bytes_max: None,
        hub: HubConfig {
            endpoint: endpoint.to_owned(),
            token: None,
            connect_timeout: PATIENCE,
            read_timeout: PATIENCE,
            connections_max: 1,
            piece_bytes: 64 * 1024,
            retries_max: 3,
            retry_wait: Duration::from_millis(5),
        },
        pip: PipConfig::default(),
    }
}

/// An address at which nobody listens. Not a port that was free a moment ago: another test may have got it since.
pub fn closed_port() -> String {
    "http://127.0.0.1:1".to_owned()
}

pub fn quiet(_: Event) {}

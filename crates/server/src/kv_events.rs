//! Tells routers which prefixes this worker has cached, over ZeroMQ in vLLM's format.
//!
//! Subscribers get every message that they keep up with. Who has missed some asks for them by number, as long as they are kept.
//! None of that reaches the engine: it hands over what has happened and never waits.

mod encode;
mod zmtp;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use ruvllm_runtime::{AdapterId, PrefixEvent};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::{sleep, timeout};

pub use encode::EventLayout;
use zmtp::{Heard, SocketType, greet, hear, say};

/// Messages that a subscriber may lag behind. Beyond that it misses some, as with any publisher of ZeroMQ.
const LAG_MAX: usize = 4096;
/// Messages that are kept for those who have missed some, and their bytes.
const KEPT_MAX: usize = 10_000;
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Events that are sent as one message, if so many wait.
const EVENTS_MAX: usize = 256;
/// Connections at a time to each of the two sockets.
const PEERS_MAX: usize = 64;
const SUBSCRIPTIONS_MAX: usize = 64;
/// How long a peer may take to greet, or to take a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Marks the end of what was missed.
const END: [u8; 8] = [0xff; 8];

/// Returns the name of an adapter.
pub type AdapterNames = Arc<dyn Fn(AdapterId) -> Option<String> + Send + Sync>;

/// A published message.
#[derive(Clone, Debug)]
struct Published {
    number: u64,
    payload: Bytes,
}

/// What was published last.
#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Published>,
    bytes: usize,
}

/// Publishes what an engine tells of its prefixes.
#[derive(Clone, Debug)]
pub struct KvEvents {
    topic: Bytes,
    layout: EventLayout,
    kept: Arc<Mutex<Kept>>,
    published: broadcast::Sender<Published>,
}

impl KvEvents {
    pub fn new(topic: String, layout: EventLayout) -> Self {
        Self { topic: topic.into(), layout, kept: Arc::default(), published: broadcast::channel(LAG_MAX).0 }
    }

    /// Publishes what is heard, until nobody can say anything any more.
    pub async fn publish(self, mut heard: mpsc::Receiver<Vec<PrefixEvent>>, names: AdapterNames) {
        let mut messages = Vec::new();
        let mut number = 0;
        while heard.recv_many(&mut messages, EVENTS_MAX).await > 0 {
            let events: Vec<PrefixEvent> = messages.drain(..).flatten().collect();
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let payload = encode::encode(&events, unix, self.layout, &|id| names(id)).into();
            let message = Published { number, payload };
            number += 1;
            self.kept().add(message.clone());
            // Nobody may be listening.
            let _ = self.published.send(message);
        }
    }

    /// Serves subscribers.
    pub async fn serve_subscribers(self, listener: TcpListener) {
        serve(listener, |stream| subscriber(self.clone(), stream)).await;
    }

    /// Serves those who ask for what they have missed.
    pub async fn serve_replays(self, listener: TcpListener) {
        serve(listener, |stream| replays(self.clone(), stream)).await;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn add(&mut self, message: Published) {
        self.bytes += message.payload.len();
        self.messages.push_back(message);
        while self.messages.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX {
            let Some(gone) = self.messages.pop_front() else { break };
            self.bytes -= gone.payload.len();
        }
    }

    fn since(&self, number: u64) -> Vec<Published> {
        let first = self.messages.partition_point(|message| message.number < number);
        self.messages.range(first..).cloned().collect()
    }
}

/// Accepts peers and has each one served.
async fn serve<F>(listener: TcpListener, serve_one: impl Fn(TcpStream) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(PEERS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a listener of KV events: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Messages are small and should not wait for each other.
        let _ = stream.set_nodelay(true);
        let served = serve_one(stream);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                report(peer, &error);
            }
            drop(place);
        });
    }
}

/// One that hangs up is no news.
fn report(peer: SocketAddr, error: &io::Error) {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::TimedOut => {
            tracing::warn!(%peer, "a listener of KV events is turned away: {error}");
        }
        _ => tracing::debug!(%peer, "a listener of KV events is gone: {error}"),
    }
}

async fn patiently<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends a subscriber what it has subscribed to.
async fn subscriber(events: KvEvents, mut stream: TcpStream) -> io::Result<()> {
    patiently(greet(&mut stream, SocketType::Publisher)).await?;
    let mut published = events.published.subscribe();
    let (mut reader, mut writer) = stream.into_split();
    let (said, mut hears) = mpsc::channel(1);
    // Reading must not be broken off in the middle of a frame.
    let reading = tokio::spawn(async move { listen(&mut reader, said).await });
    let mut topics: Vec<Vec<u8>> = Vec::new();
    let outcome = loop {
        tokio::select! {
            heard = hears.recv() => match heard {
                Some(heard) => {
                    if let Err(error) = take(heard, &mut topics, &mut writer).await {
                        break Err(error);
                    }
                }
                None => break Ok(()),
            },
            message = published.recv() => match message {
                Ok(message) if topics.iter().any(|topic| events.topic.starts_with(topic)) => {
                    let number = Bytes::copy_from_slice(&message.number.to_be_bytes());
                    let frames = [events.topic.clone(), number, message.payload];
                    if let Err(error) = patiently(say(&mut writer, &frames)).await {
                        break Err(error);
                    }
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break Ok(()),
            },
        }
    };
    reading.abort();
    outcome
}

async fn listen(reader: &mut OwnedReadHalf, said: mpsc::Sender<Heard>) {
    while let Ok(heard) = hear(reader).await {
        if said.send(heard).await.is_err() {
            return;
        }
    }
}

/// Takes a subscription, or the end of one.
async fn take(heard: Heard, topics: &mut Vec<Vec<u8>>, writer: &mut OwnedWriteHalf) -> io::Result<()> {
    let said = match heard {
        Heard::Message(frames) => frames.concat(),
        Heard::Command(command) => {
            if let Some(pong) = zmtp::pong(&command) {
                return patiently(writer.write_all(&pong)).await;
            }
            // As ZMTP 3.1 says it.
            match (command.strip_prefix(b"\x09SUBSCRIBE"), command.strip_prefix(b"\x06CANCEL")) {
                (Some(topic), _) => [&[1], topic].concat(),
                (_, Some(topic)) => [&[0], topic].concat(),
                _ => return Ok(()),
            }
        }
    };
    match said.split_first() {
        Some((1, topic)) if topics.len() < SUBSCRIPTIONS_MAX => topics.push(topic.to_vec()),
        Some((1, _)) => return Err(io::Error::new(io::ErrorKind::InvalidData, "it subscribes to too much")),
        Some((0, topic)) => {
            if let Some(index) = topics.iter().position(|known| known == topic) {
                topics.swap_remove(index);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Answers with all messages from a number on, and an end.
async fn replays(events: KvEvents, mut stream: TcpStream) -> io::Result<()> {
    patiently(greet(&mut stream, SocketType::Router)).await?;
    loop {
        let asked = match hear(&mut stream).await {
            Ok(Heard::Message(frames)) => frames,
            Ok(Heard::Command(_)) => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let number = asked.last().and_then(|frame| Some(u64::from_be_bytes(*frame.first_chunk()?)));
        let number = number.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "it has to ask for a number of eight bytes, the highest first")
        })?;
        let missed = events.kept().since(number);
        for Published { number, payload } in missed {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            patiently(say(&mut stream, &[Bytes::new(), number, payload])).await?;
        }
        patiently(say(&mut stream, &[Bytes::new(), Bytes::from_static(&END), Bytes::new()])).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_kept() {
        let mut kept = Kept::default();
        for number in 0..KEPT_MAX as u64 + 5 {
            kept.add(Published { number, payload: Bytes::from_static(b"abc") });
        }
        assert_eq!((kept.messages.len(), kept.bytes), (KEPT_MAX, 3 * KEPT_MAX));
        let since = |number| kept.since(number).first().map(|message| message.number);
        assert_eq!((since(0), since(5000), since(KEPT_MAX as u64 + 5)), (Some(5), Some(5000), None));
        kept.add(Published { number: 20_000, payload: Bytes::from(vec![0; KEPT_BYTES_MAX]) });
        assert_eq!(kept.messages.len(), 1, "the last, for which there is just room");
    }
}

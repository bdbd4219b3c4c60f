//! What is needed of ZeroMQ's wire protocol (ZMTP 3.0 over TCP, without authentication) to publish and to answer: greetings,
//! and messages of several frames. Peers are not trusted: what they send is small, or the connection ends.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A peer's frames are topics and numbers.
const FRAME_BYTES_MAX: u64 = 1024;
/// Frames of a peer's message: routing information, and what it says.
const FRAMES_MAX: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a socket is: it decides which peers it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketType {
    Publisher,
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            Self::Publisher => "PUB",
            Self::Router => "ROUTER",
        }
    }

    fn may_talk_to(self, peer: &[u8]) -> bool {
        match self {
            Self::Publisher => [&b"SUB"[..], b"XSUB"].contains(&peer),
            Self::Router => [&b"REQ"[..], b"DEALER", b"ROUTER"].contains(&peer),
        }
    }
}

/// What a peer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Message(Vec<Vec<u8>>),
    Command(Vec<u8>),
}

/// Exchanges greetings with a peer.
pub(super) async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), socket: SocketType) -> io::Result<()> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
        return Err(invalid("it does not speak ZMTP 3"));
    }
    if theirs[12..32] != greeting[12..32] {
        return Err(invalid("it wants authentication, which this socket does not have"));
    }
    stream.write_all(&command(b"READY", &property("Socket-Type", socket.name().as_bytes()))).await?;
    let Heard::Command(ready) = hear(stream).await? else { return Err(invalid("it does not say what it is")) };
    let properties = ready.strip_prefix(b"\x05READY").ok_or_else(|| invalid("it does not say what it is"))?;
    match value_of(properties, "socket-type") {
        Some(peer) if socket.may_talk_to(peer) => Ok(()),
        _ => Err(invalid("its socket has another purpose")),
    }
}

/// Waits for the next message or command of a peer.
pub(super) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Heard> {
    let mut frames = Vec::new();
    loop {
        let flags = stream.read_u8().await?;
        let length = match flags & LONG {
            0 => u64::from(stream.read_u8().await?),
            _ => stream.read_u64().await?,
        };
        if flags > MORE | LONG | COMMAND || length > FRAME_BYTES_MAX || frames.len() == FRAMES_MAX {
            return Err(invalid("it says more than it has to"));
        }
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await?;
        if flags & COMMAND != 0 {
            return Ok(Heard::Command(frame));
        }
        frames.push(frame);
        if flags & MORE == 0 {
            return Ok(Heard::Message(frames));
        }
    }
}

/// Sends a message of these frames.
pub(super) async fn say(stream: &mut (impl AsyncWrite + Unpin), frames: &[Bytes]) -> io::Result<()> {
    for (number, frame) in frames.iter().enumerate() {
        let more = if number + 1 < frames.len() { MORE } else { 0 };
        match u8::try_from(frame.len()) {
            Ok(length) => stream.write_all(&[more, length]).await?,
            Err(_) => {
                stream.write_u8(more | LONG).await?;
                stream.write_u64(frame.len() as u64).await?;
            }
        }
        stream.write_all(frame).await?;
    }
    stream.flush().await
}

/// Returns the answer to a peer that asks whether anybody is there.
pub(super) fn pong(heard: &[u8]) -> Option<Vec<u8>> {
    // Behind the name comes a time to live of two bytes.
    let context = heard.strip_prefix(b"\x04PING")?.get(2..)?;
    Some(command(b"PONG", &context[..context.len().min(16)]))
}

/// Returns the frame of a command.
fn command(name: &[u8], body: &[u8]) -> Vec<u8> {
    let length = 1 + name.len() + body.len();
    [&[COMMAND, length as u8, name.len() as u8], name, body].concat()
}

fn property(name: &str, value: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name.as_bytes(), &(value.len() as u32).to_be_bytes(), value].concat()
}

/// Looks for a property by its name in small letters.
fn value_of<'a>(mut properties: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(value);
        }
        properties = rest;
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn heard(bytes: &[u8]) -> io::Result<Heard> {
        hear(&mut &*bytes).await
    }

    #[tokio::test]
    async fn messages_are_read_frame_by_frame_and_long_ones_refused() {
        let message = heard(b"\x01\x00\x00\x02ab").await.expect("a message");
        assert_eq!(message, Heard::Message(vec![vec![], b"ab".to_vec()]));
        let long = [&b"\x02\0\0\0\0\0\0\x01\x00"[..], &[7; 256]].concat();
        assert_eq!(heard(&long).await.expect("a message"), Heard::Message(vec![vec![7; 256]]));
        assert!(heard(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff").await.is_err(), "it would take all memory");
        assert!(heard(&b"\x01\x00".repeat(9)).await.is_err(), "a message without end");
        assert!(heard(b"\x08\x00").await.is_err(), "an unknown flag");
        assert!(heard(b"\x00\x05ab").await.is_err(), "it breaks off");
    }

    #[tokio::test]
    async fn what_is_said_is_heard() {
        let mut wire = Vec::new();
        say(&mut wire, &[Bytes::from_static(b"topic"), Bytes::from(vec![3; 300])]).await.expect("it is written");
        assert_eq!(heard(&wire).await.expect("a message"), Heard::Message(vec![b"topic".to_vec(), vec![3; 300]]));
        assert_eq!(pong(b"\x04PING\x00\x0aabc"), Some(b"\x04\x08\x04PONGabc".to_vec()));
        assert_eq!((pong(b"\x04PING\x00"), pong(b"\x05READY")), (None, None));
    }

    #[tokio::test]
    async fn peers_of_another_kind_are_refused() {
        for (socket, peer, is_welcome) in [
            (SocketType::Publisher, &b"SUB"[..], true),
            (SocketType::Publisher, b"PUB", false),
            (SocketType::Router, b"REQ", true),
            (SocketType::Router, b"", false),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1024);
            let mut greeting = [0; 64];
            (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
            greeting[12..16].copy_from_slice(b"NULL");
            theirs.write_all(&greeting).await.expect("room for it");
            theirs.write_all(&command(b"READY", &property("Socket-Type", peer))).await.expect("room for it");
            assert_eq!(greet(&mut ours, socket).await.is_ok(), is_welcome, "{socket:?} and {peer:?}");
        }
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n\r\n").await.expect("room for it");
        theirs.write_all(&[b' '; 64]).await.expect("room for it");
        assert!(greet(&mut ours, SocketType::Publisher).await.is_err());
    }
}

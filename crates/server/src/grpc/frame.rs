//! Messages on the wire: a byte that says whether it is compressed, four bytes of length, and the message.

use prost::Message;

use crate::error::ApiError;

const HEAD_BYTES: usize = 5;

/// Appends a message with its length.
pub(crate) fn write(message: &impl Message, out: &mut Vec<u8>) {
    let length = message.encoded_len();
    out.reserve(HEAD_BYTES + length);
    out.push(0);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    // Fails only where a buffer has no room.
    let _ = message.encode(out);
}

/// Reads the only message of a request.
pub(crate) fn read_one<T: Message + Default>(bytes: &[u8]) -> Result<T, ApiError> {
    match split(bytes)? {
        Some((message, [])) => decode(message),
        Some(_) => Err(ApiError::invalid("the request has several messages; send one")),
        None => Err(ApiError::invalid("the request has no whole message")),
    }
}

/// Reads a message.
pub(crate) fn decode<T: Message + Default>(message: &[u8]) -> Result<T, ApiError> {
    T::decode(message)
        .map_err(|error| ApiError::invalid(format!("the message cannot be read: {error}")).with_code("invalid_message"))
}

/// A message, and what follows it.
type MessageAndRest<'a> = (&'a [u8], &'a [u8]);

/// Splits the first message off; `None` until it is there completely.
pub(crate) fn split(bytes: &[u8]) -> Result<Option<MessageAndRest<'_>>, ApiError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        let error = ApiError::invalid("compressed messages are not read; send them with the encoding identity");
        return Err(error.with_code("unsupported_encoding"));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    Ok(rest.split_at_checked(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_whole_and_one_by_one() {
        let mut bytes = Vec::new();
        write(&"one".to_owned(), &mut bytes);
        assert_eq!(read_one::<String>(&bytes).unwrap(), "one");
        write(&String::new(), &mut bytes);
        assert!(read_one::<String>(&bytes).is_err(), "two");
        let (first, rest) = split(&bytes).unwrap().unwrap();
        assert_eq!(decode::<String>(first).unwrap(), "one");
        assert_eq!(split(rest).unwrap().unwrap(), (&[][..], &[][..]));
    }

    #[test]
    fn what_is_cut_off_or_compressed_is_refused() {
        let mut bytes = Vec::new();
        write(&"something".to_owned(), &mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(split(&bytes[..end]).unwrap(), None);
            assert!(read_one::<String>(&bytes[..end]).is_err());
        }
        bytes[0] = 1;
        assert_eq!(read_one::<String>(&bytes).unwrap_err().code.as_deref(), Some("unsupported_encoding"));
        // A length that no body has allocates nothing.
        assert_eq!(split(&[0, 255, 255, 255, 255, 1]).unwrap(), None);
    }
}

use bytes::{Bytes, BytesMut};

/// The bytes of an object, as one piece or as the pieces it was written from.
#[derive(Debug)]
pub struct Object {
    /// Each piece and where it starts, in order.
    pieces: Vec<(u64, Bytes)>,
    size: u64,
    trusted: bool,
}

impl Object {
    pub(crate) fn written(body: Vec<Bytes>) -> Object {
        Object::new(body, true)
    }

    pub(crate) fn read(bytes: Bytes) -> Object {
        Object::new(vec![bytes], false)
    }

    fn new(body: Vec<Bytes>, trusted: bool) -> Object {
        let mut size = 0;
        let pieces = body
            .into_iter()
            .map(|piece| {
                let start = size;
                size += piece.len() as u64;
                (start, piece)
            })
            .collect();
        Object {
            pieces,
            size,
            trusted,
        }
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the bytes never left this process: their checksums were checked when they came in.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// `size` bytes from `position` on, shared; `None` if the object ends before. Copies only a range that spans
    /// pieces, which no batch does.
    pub fn slice(&self, position: u32, size: u32) -> Option<Bytes> {
        let (from, to) = (u64::from(position), u64::from(position) + u64::from(size));
        if to > self.size {
            return None;
        }
        let first = self
            .pieces
            .partition_point(|(start, _)| *start <= from)
            .checked_sub(1)?;
        let (start, piece) = self.pieces.get(first)?;
        let offset = usize::try_from(from - start).ok()?;
        let length = usize::try_from(size).ok()?;
        if let Some(bytes) = piece.get(offset..offset + length) {
            return Some(piece.slice_ref(bytes));
        }
        let mut joined = BytesMut::with_capacity(length);
        for piece in self.slices(position, size)? {
            joined.extend_from_slice(&piece);
        }
        Some(joined.freeze())
    }

    /// The same in as many pieces as it lies in, nothing copied.
    pub fn slices(&self, position: u32, size: u32) -> Option<Vec<Bytes>> {
        let (mut from, to) = (u64::from(position), u64::from(position) + u64::from(size));
        if to > self.size {
            return None;
        }
        let first = self.pieces.partition_point(|(start, _)| *start <= from);
        let mut slices = Vec::new();
        for (start, piece) in self.pieces.get(first.saturating_sub(1)..)? {
            let end = to.min(start + piece.len() as u64);
            if from < end {
                let range = usize::try_from(from - start).ok()?..usize::try_from(end - start).ok()?;
                slices.push(piece.slice_ref(piece.get(range)?));
                from = end;
            }
        }
        Some(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_within_a_piece_are_shared_and_others_joined() {
        let pieces = [&b"0"[..], b"123", b"4567", b"89"].map(Bytes::from_static);
        let object = Object::written(pieces.to_vec());
        assert_eq!(object.size(), 10);
        let shared = object.slice(4, 4).unwrap();
        assert_eq!((&shared[..], shared.as_ptr()), (&b"4567"[..], pieces[2].as_ptr()));
        assert_eq!(&object.slice(2, 7).unwrap()[..], b"2345678");
        assert_eq!(&object.slice(0, 10).unwrap()[..], b"0123456789");
        assert_eq!(object.slice(10, 0).unwrap().len(), 0);
        assert_eq!(object.slice(9, 2), None);
        assert_eq!(object.slice(u32::MAX, u32::MAX), None);
        let slices = |position, size| -> Vec<Vec<u8>> {
            let slices = object.slices(position, size).unwrap();
            slices.iter().map(|slice| slice.to_vec()).collect()
        };
        assert_eq!(slices(0, 10), [&b"0"[..], b"123", b"4567", b"89"]);
        assert_eq!(slices(2, 4), [&b"23"[..], b"45"]);
        assert_eq!(slices(4, 4), [&b"4567"[..]]);
        assert!(slices(10, 0).is_empty() && object.slices(9, 2).is_none());
        let shared = object.slices(3, 3).unwrap();
        assert_eq!(shared[1].as_ptr(), pieces[2].as_ptr());
    }
}

//! Writing disjoint parts of one slice from several threads.
#![expect(
    unsafe_code,
    reason = "the compiler can't see that column ranges of a row-major matrix are disjoint"
)]

use std::marker::PhantomData;

/// A mutable slice whose parts are lent out by position.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: It is a `&mut [T]` that is cut up; `part`'s contract keeps the parts apart.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: As above: threads get parts only by `part`, and a part belongs to one thread.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// `slice[at..at + len]`.
    ///
    /// # Safety
    /// No other part that overlaps it may be alive.
    ///
    /// # Panics
    /// If the part isn't inside the slice.
    #[expect(
        clippy::mut_from_ref,
        reason = "that is the point; the contract forbids overlap"
    )]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "part {at}+{len} of {} values", self.len);
        // SAFETY: `at` is inside the allocation, by the assertion.
        let start = unsafe { self.start.add(at) };
        // SAFETY: The part is inside a slice that is borrowed mutably for `'a`, and the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

//! Memory of large buffers in huge pages.
//!
//! Columns are read into buffers of many megabytes that were never touched before; with pages of
//! 4 KiB the kernel spends as long on page faults as the decoder on decoding. Buffers from
//! [`HUGE_FROM_BYTES`] up are aligned to 2 MiB and marked for transparent huge pages. Everything
//! else, and the memory itself, is the system allocator's.

#![expect(
    unsafe_code,
    reason = "a global allocator is unsafe by nature; every call is passed on"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// The size of a huge page, on the machines where there are any.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Below this a huge page would mostly be waste.
const HUGE_FROM_BYTES: usize = 2 * HUGE_PAGE_BYTES;

struct HugePages;

#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

/// The layout that is passed on. It depends on the request alone, so that freeing finds it again.
fn widened(layout: Layout) -> Layout {
    if layout.size() < HUGE_FROM_BYTES {
        return layout;
    }
    layout.align_to(HUGE_PAGE_BYTES).unwrap_or(layout)
}

// SAFETY: every method passes its arguments to the system allocator, with the layout widened in the
// same way when memory is taken and when it is given back.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let wide = widened(layout);
        // SAFETY: the caller's contract; the alignment is a larger power of two.
        let block = unsafe { System.alloc(wide) };
        if wide.align() != layout.align() && !block.is_null() {
            // SAFETY: the range was just allocated and begins at a page. Advice that is refused
            // leaves ordinary pages.
            let _ = unsafe {
                rustix::mm::madvise(block.cast(), wide.size(), rustix::mm::Advice::LinuxHugepage)
            };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract, and `alloc` used the same widened layout.
        unsafe { System.dealloc(block, widened(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() < HUGE_FROM_BYTES {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's contract.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block has that size. It may be recycled, so it has to be written.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.size().max(new_size) < HUGE_FROM_BYTES {
            // SAFETY: the caller's contract; neither size is widened.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        // SAFETY: `new_size` is the caller's, who guarantees that it fits the alignment.
        let grown = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the caller's contract.
        let new = unsafe { self.alloc(grown) };
        if !new.is_null() {
            // SAFETY: both blocks are at least that long, and the new one is another.
            unsafe {
                block.copy_to_nonoverlapping(new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

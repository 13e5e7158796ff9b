// SPDX-License-Identifier: BSD-3-Clause
const { TextDecoder, TextEncoder } = require('util');

class Observer {
  disconnect() {}
  observe() {}
  unobserve() {}
}

// What browsers have, and jsdom has not.
Object.assign(globalThis, {
  DragEvent: MouseEvent,
  IntersectionObserver: Observer,
  ResizeObserver: Observer,
  TextDecoder,
  TextEncoder,
  fetch: () => Promise.reject(new Error('There is no network in the tests.')),
  matchMedia: () => ({
    addEventListener: () => undefined,
    addListener: () => undefined,
    matches: false,
    removeEventListener: () => undefined,
    removeListener: () => undefined
  })
});
Object.assign(navigator, { clipboard: {} });

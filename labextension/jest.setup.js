// SPDX-License-Identifier: BSD-3-Clause
const { TextDecoder, TextEncoder } = require('util');

class Observer {
  disconnect() {}
  observe() {}
  unobserve() {}
}

class Request {
  constructor(url, init) {
    this.url = url;
    this.init = init;
    this.headers = new Map();
  }
}

// What browsers have, and jsdom has not.
Object.assign(globalThis, {
  DragEvent: MouseEvent,
  Headers: Map,
  IntersectionObserver: Observer,
  Request,
  requestIdleCallback: callback => setTimeout(callback),
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
// By the clock of the test, which may be a fake one.
globalThis.AbortSignal.timeout = milliseconds => {
  const abort = new globalThis.AbortController();
  setTimeout(() => abort.abort(), milliseconds);
  return abort.signal;
};

// SPDX-License-Identifier: BSD-3-Clause
import { Debouncer, Poll } from '@lumino/polling';

import type { Division, INode, INodeUsage, IViewer } from './messages';
import type { Link, Store } from './store';
import { TEXT } from './text';

const SECOND = 1000;
/** A stream without data for this long is considered dead; the service sends something every 15 s. */
const SILENCE = 40 * SECOND;
/** After this long in a hidden tab, the page closes its stream. */
const HIDDEN = 30 * SECOND;
/** The shortest time between two automatic reloads of the page. */
const AGAIN = 60 * SECOND;
/** The shortest and the longest pause between two attempts to open a stream. */
const PAUSES = { interval: SECOND, backoff: 2, max: 15 * SECOND };

const LOGIN = 'gpushare-login';

/** The connection to the Hub service: a stream of data, and actions. */
export class Service {
  constructor(store: Store) {
    this._store = store;
    // The constructor of Poll does not accept a maximum below 30 s.
    this._streams.frequency = PAUSES;
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) {
        void this._leaving.invoke();
      } else {
        void this._leaving.stop();
        this.listen();
      }
    });
  }

  /** Send an action for a node, and show the outcome. */
  async act(
    node: string,
    op: string,
    body: object,
    done: string
  ): Promise<void> {
    try {
      const answer = await this._fetch(
        `nodes/${encodeURIComponent(node)}/${op}`,
        {
          method: 'POST',
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify(body)
        }
      );
      if (answer.ok) {
        this._store.report(done);
        return;
      }
      const { message } = (await answer.json()) as { message: string };
      this._store.report(TEXT.failed(message), true);
    } catch {
      this._store.report(TEXT.failed(TEXT.noAnswer), true);
    }
  }

  /** Return the usage reports of all nodes since a time. */
  async usage(
    by: readonly Division[],
    since: number
  ): Promise<ReadonlyMap<string, INodeUsage>> {
    const query = new URLSearchParams({ since: String(since) });
    by.forEach(division => query.append('by', division));
    try {
      const answer = await this._fetch(`usage?${query}`);
      const found = (await answer.json()) as {
        nodes?: Record<string, INodeUsage>;
        message?: string;
      };
      if (found.nodes) {
        return new Map(Object.entries(found.nodes));
      }
      this._store.report(TEXT.failed(found.message ?? TEXT.noAnswer), true);
    } catch {
      this._store.report(TEXT.failed(TEXT.noAnswer), true);
    }
    return new Map();
  }

  /** Receive data from the service while the page is visible. */
  listen(): void {
    void this._streams.start();
  }

  /** Read one stream to its end. Fails if it brought no data, so that the next attempt is made later. */
  private async _listen(): Promise<void> {
    const listening = (this._listening = new AbortController());
    const silence = new Debouncer(() => listening.abort(), SILENCE);
    let isAlive = false;
    try {
      void silence.invoke();
      const mayListen = await this._read(listening.signal, () => {
        isAlive = true;
        void silence.invoke();
      });
      if (!mayListen) {
        this._streams.dispose();
        this._logInAgain();
        return;
      }
    } catch {
      // The service cannot be reached for now.
    } finally {
      silence.dispose();
    }
    if (!document.hidden) {
      this._setLink('bad');
    }
    if (!isAlive) {
      throw new Error('The service did not respond.');
    }
  }

  private _leave(): void {
    void this._streams.stop();
    this._listening?.abort();
  }

  /** Read one stream to its end; returns whether the viewer may open another one. */
  private async _read(
    signal: AbortSignal,
    alive: () => void
  ): Promise<boolean> {
    const answer = await this._fetch('stream', { signal });
    if (!answer.ok || !answer.body) {
      return answer.status !== 403;
    }
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let text = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return true;
      }
      alive();
      text += decoder.decode(value, { stream: true });
      const messages = text.split('\n\n');
      text = messages.pop() ?? '';
      for (const message of messages) {
        const [, kind = '', data = ''] =
          /^event: (\w+)\ndata: (.*)$/.exec(message) ?? [];
        if (kind === 'over') {
          return false;
        }
        this._take(kind, data);
      }
      if (this._store.state.isReady) {
        this._setLink('good');
      }
    }
  }

  private _take(kind: string, data: string): void {
    switch (kind) {
      case 'viewer':
        this._store.change({ viewer: JSON.parse(data) as IViewer });
        break;
      case 'node':
        this._store.setNode(JSON.parse(data) as INode);
        break;
      case 'names':
        this._store.setNames(JSON.parse(data) as string[]);
        break;
    }
  }

  private _setLink(link: Link): void {
    const before = this._store.state.link;
    if (link !== before) {
      this._store.change({ link });
      if (before === 'good') {
        this._store.report(TEXT.link[link], true);
      }
    }
  }

  /** Reload the page after the session has ended, which leads to the login. If the last reload did not help, report it. */
  private _logInAgain(): void {
    const last = Number(sessionStorage.getItem(LOGIN));
    if (Date.now() - last > AGAIN) {
      sessionStorage.setItem(LOGIN, String(Date.now()));
      location.reload();
    } else {
      this._setLink('over');
    }
  }

  private _fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const { prefix = '' } = document.body.dataset;
    return fetch(`${prefix}api/${path}`, {
      ...init,
      headers: { ...init.headers, 'X-XSRFToken': xsrf() }
    });
  }

  private _leaving = new Debouncer(() => this._leave(), HIDDEN);
  private _listening: AbortController | null = null;
  private _store: Store;
  /** Opens one stream after the other. */
  private _streams = new Poll({
    auto: false,
    factory: () => this._listen(),
    standby: () => document.hidden
  });
}

/** The XSRF token. The cookie has priority, because another tab may have logged in again since this page was loaded. */
function xsrf(): string {
  const [, found] = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie) ?? [];
  return found ?? document.body.dataset['xsrf'] ?? '';
}

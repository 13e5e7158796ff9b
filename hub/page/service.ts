// SPDX-License-Identifier: BSD-3-Clause
import { Debouncer, Poll } from '@lumino/polling';

import type { INode, IViewer } from './messages';
import type { Link, Store } from './store';
import { TEXT } from './text';

const SECOND = 1000;
/** A stream that says nothing for so long is dead; the service says something every 15 s. */
const SILENCE = 40 * SECOND;
/** After so long in a tab that nobody sees, the page hears no more. */
const HIDDEN = 30 * SECOND;
/** The page is not loaded again by itself so soon after it was. */
const AGAIN = 60 * SECOND;
/** The shortest and the longest pause between two attempts to hear the service. */
const PAUSES = { interval: SECOND, backoff: 2, max: 15 * SECOND };

const LOGIN = 'gpushare-login';

/** The service that sends what there is, and acts. */
export class Service {
  constructor(store: Store) {
    this._store = store;
    // The constructor of Poll takes no longest pause below 30 s.
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

  /** Ask for an action on a node, and show the outcome. */
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
        this._store.say(done);
        return;
      }
      const { message } = (await answer.json()) as { message: string };
      this._store.say(TEXT.failed(message), true);
    } catch {
      this._store.say(TEXT.failed(TEXT.noAnswer), true);
    }
  }

  /** Listen to the service while the page is visible. */
  listen(): void {
    void this._streams.start();
  }

  /** Hear one stream to its end; fail if it brought nothing, so that the next is tried later. */
  private async _listen(): Promise<void> {
    const listening = (this._listening = new AbortController());
    const silence = new Debouncer(() => listening.abort(), SILENCE);
    let isAlive = false;
    try {
      void silence.invoke();
      const mayListen = await this._hear(listening.signal, () => {
        isAlive = true;
        void silence.invoke();
      });
      if (!mayListen) {
        this._streams.dispose();
        this._logInAgain();
        return;
      }
    } catch {
      // The service, or the way to it, is gone for a while.
    } finally {
      silence.dispose();
    }
    if (!document.hidden) {
      this._setLink('bad');
    }
    if (!isAlive) {
      throw new Error('The service does not answer.');
    }
  }

  private _leave(): void {
    void this._streams.stop();
    this._listening?.abort();
  }

  /** Hear one stream to its end; whether the viewer may hear another. */
  private async _hear(
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
        this._store.say(TEXT.link[link], true);
      }
    }
  }

  /** The session is over: the Hub says on the way back whether there can be another. Once only, if it does not help. */
  private _logInAgain(): void {
    const last = Number(sessionStorage.getItem(LOGIN));
    if (Date.now() - last > AGAIN) {
      sessionStorage.setItem(LOGIN, String(Date.now()));
      location.reload();
    } else {
      this._setLink('over');
    }
  }

  private _fetch(path: string, init: RequestInit): Promise<Response> {
    const { prefix = '' } = document.body.dataset;
    return fetch(`${prefix}api/${path}`, {
      ...init,
      headers: { ...init.headers, 'X-XSRFToken': xsrf() }
    });
  }

  private _leaving = new Debouncer(() => this._leave(), HIDDEN);
  private _listening: AbortController | null = null;
  private _store: Store;
  /** One stream after the other. */
  private _streams = new Poll({
    auto: false,
    factory: () => this._listen(),
    standby: () => document.hidden
  });
}

/** What says that it is this page that asks; another tab that logged in again has another one for both. */
function xsrf(): string {
  const [, found] = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie) ?? [];
  return found ?? document.body.dataset['xsrf'] ?? '';
}

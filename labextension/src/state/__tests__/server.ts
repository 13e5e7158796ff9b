// SPDX-License-Identifier: BSD-3-Clause
import type { Event } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { SCHEMA_ID } from '../model';
import type { IDelta, IStatus } from '../../core/status';
import { makeGroup, makeStatus } from '../../__tests__/fixtures';

const BASE = 'http://localhost/user/ada/';

interface IRequested {
  method: string;
  /** Below the base URL, without what defeats caches. */
  path: string;
  body: unknown;
}

/** A request as `jest.setup.js` makes it. */
interface IFakeRequest {
  url: string;
  init: RequestInit;
}

/** A server with answers that the test sets. */
export class FakeServer {
  constructor() {
    this.settings = ServerConnection.makeSettings({
      baseUrl: BASE,
      fetch: request => {
        const { url, init } = request as unknown as IFakeRequest;
        expect(url.startsWith(BASE)).toBe(true);
        this.requests.push({
          method: init.method ?? 'GET',
          path: url.slice(BASE.length).replace(/[?&]\d+$/, ''),
          body: init.body ? JSON.parse(init.body as string) : null
        });
        return url.includes('/changes?')
          ? this.changes(Number(/since=(\d+)/.exec(url)?.[1]))
          : this.answer(init);
      }
    });
  }

  /** The number of requests for the whole state. */
  get asked(): number {
    return this.requests.filter(({ path }) => path.includes('/status?')).length;
  }

  /** The number of requests for deltas. */
  get fetched(): number {
    return this.requests.filter(({ path }) => path.includes('/changes?'))
      .length;
  }

  changes: (since: number) => Promise<Response> = since =>
    this.ok({
      stream: 'stream',
      sequence:
        this.deltas[this.deltas.length - 1]?.sequence ?? this.status.sequence,
      deltas: this.deltas.filter(({ sequence }) => sequence > since)
    });

  answer: (init: RequestInit) => Promise<Response> = () => this.ok(this.status);

  ok(body: unknown): Promise<Response> {
    return Promise.resolve({
      ok: true,
      status: 200,
      // A copy, like an answer over the network.
      json: () => Promise.resolve(JSON.parse(JSON.stringify(body)))
    } as Response);
  }

  refuse(status: number, message = ''): Promise<Response> {
    return Promise.resolve({
      ok: false,
      status,
      statusText: '',
      json: () => Promise.resolve({ message })
    } as Response);
  }

  /** Emit an event that any client can post. */
  push(event: object): void {
    this.stream.emit({ schema_id: SCHEMA_ID, ...event });
  }

  /** Keep a delta, and announce it. */
  delta(sequence: number, changes: Partial<IDelta> = {}): void {
    this.deltas.push({
      stream: 'stream',
      sequence,
      time: 100 + sequence,
      set: {},
      gpus: [],
      groups: [],
      removed: [],
      spans: [],
      samples: [],
      ...changes
    });
    this.push({ stream: 'stream', sequence });
  }

  deltas: IDelta[] = [];

  readonly requests: IRequested[] = [];
  readonly settings: ServerConnection.ISettings;
  status: IStatus = makeStatus(makeGroup('a'), makeGroup('b'));
  readonly stream = new Signal<this, Event.Emission>(this);
}

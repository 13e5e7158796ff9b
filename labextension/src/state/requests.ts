// SPDX-License-Identifier: BSD-3-Clause
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';

import { readChanges, readStatus } from '../core/delta';
import type { IAnnouncement, ICode, IDelta, IStatus } from '../core/status';
import type { ITranslation } from '../core/translation';
import type { Hint, IAction } from '../tokens';

/** The longest time for an answer, in milliseconds. A connection that broke while the computer slept never answers. */
const PATIENCE = 10_000;

/** The requests of this page to the server extension. */
export class Requests {
  constructor(settings: ServerConnection.ISettings, trans: ITranslation) {
    this._settings = settings;
    this._trans = trans;
  }

  /** Request the whole state, or the reason why there is none. This registers the page as a watcher. */
  async status(timeline: boolean): Promise<IStatus | ICode> {
    try {
      const response = await this._request(
        `status?watch=${this._id}${timeline ? '&timeline=1' : ''}`,
        { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) }
      );
      return response.ok
        ? (readStatus(await response.json()) ?? {
            code: 'other_version',
            params: {}
          })
        : await failureOf(response);
    } catch (error) {
      return { code: 'server_unreachable', params: { error: String(error) } };
    }
  }

  /** Request the deltas after a number; null if the answer is not valid. */
  async changes(
    since: number
  ): Promise<(IAnnouncement & { deltas: IDelta[] }) | null> {
    const response = await this._request(`changes?since=${since}`, {
      cache: 'no-store',
      signal: AbortSignal.timeout(PATIENCE)
    });
    return response.ok ? readChanges(await response.json()) : null;
  }

  /** End the registration as a watcher. If this request is lost, the registration expires. */
  leave(): void {
    this._request(`watchers/${this._id}`, {
      method: 'DELETE',
      keepalive: true
    }).catch(() => undefined);
  }

  async act(action: IAction): Promise<void> {
    const { op, ...body } = action;
    let response: Response;
    try {
      response = await this._request(op, {
        method: 'POST',
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(PATIENCE)
      });
    } catch {
      throw new Error(this._trans.__('The Jupyter server is not responding.'));
    }
    if (!response.ok) {
      throw new Error(await messageOf(response));
    }
  }

  focus(kernelId: string | null, hint?: Hint): void {
    // Kept alive because the page may be closing.
    this._request('focus', {
      method: 'POST',
      body: JSON.stringify({ page: this._id, kernel_id: kernelId, hint }),
      keepalive: true
    }).catch(() => undefined);
  }

  async explain(group: string): Promise<unknown> {
    try {
      const response = await this._request(
        `explain?group=${encodeURIComponent(group)}`,
        { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) }
      );
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }

  private _request(path: string, init: RequestInit): Promise<Response> {
    return ServerConnection.makeRequest(
      URLExt.join(this._settings.baseUrl, 'gpushare/api', path),
      init,
      this._settings
    );
  }

  private _id = UUID.uuid4();
  private _settings: ServerConnection.ISettings;
  private _trans: ITranslation;
}

async function messageOf(response: Response): Promise<string> {
  const { message } = await ServerConnection.ResponseError.create(response);
  return message;
}

async function failureOf(response: Response): Promise<ICode> {
  switch (response.status) {
    case 401:
    case 403:
      return { code: 'forbidden', params: {} };
    case 404:
      return { code: 'server_extension_missing', params: {} };
    case 502:
    case 503:
    case 504:
      return { code: 'server_unreachable', params: {} };
    default:
      return { code: 'error', params: { error: await messageOf(response) } };
  }
}

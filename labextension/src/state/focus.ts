// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { IDocuments, IGpuShareModel } from '../tokens';

/** Milliseconds for which somebody stays at a document before the server is told. */
const SETTLED = 150;

/** What comes when the page gets or loses the focus; the last bubbles up from the document. */
const EVENTS = ['focus', 'blur', 'visibilitychange'];

/**
 * Tells the server which document's kernel somebody works with: the one in front, while
 * the page has the focus. It comes first among the same person's own.
 */
export class FocusTeller implements IDisposable {
  constructor(model: IGpuShareModel, documents: IDocuments) {
    this._model = model;
    this._documents = documents;
    model.changed.connect(this._schedule, this);
    documents.changed.connect(this._schedule, this);
    for (const type of EVENTS) {
      window.addEventListener(type, this._onFocus);
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._settled.dispose();
    for (const type of EVENTS) {
      window.removeEventListener(type, this._onFocus);
    }
    Signal.clearData(this);
  }

  private _onFocus = (): void => this._schedule();

  /** Tell once it is settled: who goes through the tabs stays at none of them. */
  private _schedule(): void {
    const next = this._wanted.join(' ');
    if (next !== this._next) {
      this._next = next;
      void this._settled.invoke();
    }
  }

  private _tell(): void {
    const [stream, kernel] = this._wanted;
    const [before, known] = this._told;
    this._told = [stream, kernel];
    // Another server process, or one that was not there for a while, knows of nothing in front.
    if (stream && kernel !== (stream === before ? known : '')) {
      this._model.focus(kernel || null);
    }
  }

  /** Who is to be told, '' for nobody; and the kernel of the document in front, '' for none. */
  private get _wanted(): [stream: string, kernel: string] {
    const { status } = this._model;
    if (status?.availability.code !== 'ok') {
      return ['', ''];
    }
    const here = !document.hidden && document.hasFocus();
    return [status.stream, (here && this._documents.currentKernel) || ''];
  }

  private _documents: IDocuments;
  private _isDisposed = false;
  private _model: IGpuShareModel;
  private _next = '';
  private _settled = new Debouncer(() => this._tell(), SETTLED);
  private _told: [stream: string, kernel: string] = ['', ''];
}

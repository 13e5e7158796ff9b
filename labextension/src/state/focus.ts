// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { IDocuments, IGpuShareModel } from '../tokens';

/** Milliseconds for which a document must stay active before it is reported. */
const SETTLED = 150;

/** Events when the page gets or loses the focus. The last one bubbles up from the document. */
const EVENTS = ['focus', 'blur', 'visibilitychange'];

/**
 * Reports to the server which kernel the user works with: that of the active document, while
 * the page has the focus. The scheduler serves it before the user's other kernels.
 */
export class FocusReporter implements IDisposable {
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

  /** Report once the user stays at a document, and not each tab that is only passed. */
  private _schedule(): void {
    const next = this._wanted.join(' ');
    if (next !== this._next) {
      this._next = next;
      void this._settled.invoke();
    }
  }

  private _report(): void {
    const [stream, kernel] = this._wanted;
    const [before, known] = this._reported;
    this._reported = [stream, kernel];
    // The server has no report if its process is new, or if it was unreachable for a while.
    if (stream && kernel !== (stream === before ? known : '')) {
      this._model.focus(kernel || null);
    }
  }

  /** The server process to report to, and the kernel of the active document; '' if there is none. */
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
  private _reported: [stream: string, kernel: string] = ['', ''];
  private _settled = new Debouncer(() => this._report(), SETTLED);
}

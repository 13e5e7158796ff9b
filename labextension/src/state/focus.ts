// SPDX-License-Identifier: BSD-3-Clause
import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { Hint, IDocuments, IGpuShareModel } from '../tokens';
import type { Place } from './returns';
import { placeOf, Returns } from './returns';

/** Milliseconds for which a document must stay active before it is reported. */
const SETTLED = 150;

/** Events when the page gets or loses the focus. The last one bubbles up from the document. */
const EVENTS = ['focus', 'blur', 'visibilitychange'];

/** The parts of documents in which users work with a kernel. */
const WORKPLACES = '.jp-Notebook, .jp-CodeConsole';

/** Shortcuts may remove the element with the focus, and editors may stop the event on its way up. */
const LISTENING = { capture: true, passive: true };

/** Keys that do nothing by themselves. */
const MODIFIERS = ['Shift', 'Control', 'Alt', 'AltGraph', 'Meta', 'CapsLock'];

/**
 * Whether a key is a sign that the user works in a document. Shortcuts are not, because they
 * may leave the document, and a shortcut that runs a cell comes too late.
 */
function isTyping(event: KeyboardEvent): boolean {
  const { key, altKey, ctrlKey, metaKey, shiftKey } = event;
  return (
    !(altKey || ctrlKey || metaKey || MODIFIERS.includes(key)) &&
    !(key === 'Enter' && shiftKey)
  );
}

/**
 * Reports to the server which kernel the user works with: that of the active document, while
 * the page has the focus. The scheduler serves it before the user's other kernels.
 *
 * A report is also a hint that the kernel will soon use the GPU if the user has returned to
 * the document. The first key is another one; nothing of what is typed is read or sent.
 *
 * One listener for the keys of the whole page is enough for code and markdown cells,
 * consoles and text fields of outputs, in JupyterLab and in Notebook 7, in every editor and
 * its Vim mode. It sees keys before an editor handles them, and none that a collaborator or
 * a program types. Signals of the active cell's content would be emitted for those, too, and
 * would have to be connected again for each cell.
 */
export class FocusReporter implements IDisposable {
  constructor(model: IGpuShareModel, documents: IDocuments) {
    this._model = model;
    this._documents = documents;
    model.changed.connect(this._onChanged, this);
    documents.changed.connect(this._schedule, this);
    for (const type of EVENTS) {
      window.addEventListener(type, this._onFocus);
    }
    window.addEventListener('keydown', this._onKey, LISTENING);
    if (model.status) {
      this._onChanged();
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
    window.removeEventListener('keydown', this._onKey, LISTENING);
    Signal.clearData(this);
  }

  private _onFocus = (): void => {
    // A hidden page receives no changes.
    this._isUpToDate &&= !document.hidden;
    this._schedule();
  };

  private _onChanged(): void {
    this._isUpToDate = !document.hidden;
    const kernel = this._documents.currentKernel;
    if (kernel) {
      this._returns.see(kernel, this._placeOf(kernel));
    }
    this._schedule();
  }

  private _onKey = (event: KeyboardEvent): void => {
    const { target } = event;
    if (
      isTyping(event) &&
      target instanceof Element &&
      target.closest(WORKPLACES)
    ) {
      const [stream, kernel] = this._wanted;
      if (kernel && this._noteSign(kernel, 'typing')) {
        this._reported = [stream, kernel];
        this._model.focus(kernel, 'typing');
      }
    }
  };

  /** Note a sign of the user, and return whether it is a hint. */
  private _noteSign(kernel: string, kind: Hint): boolean {
    const { status, preferences } = this._model;
    const uses = this._model.groupOf(kernel)?.totals.bursts ?? 0;
    return (
      preferences.prefetch &&
      status?.settings?.prefetch !== false &&
      this._returns.sign(kernel, kind, this._placeOf(kernel), uses, Date.now())
    );
  }

  private _placeOf(kernel: string): Place {
    return this._isUpToDate ? placeOf(this._model.groupOf(kernel)) : 'unknown';
  }

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
      const isHint = kernel !== '' && this._noteSign(kernel, 'focus');
      this._model.focus(kernel || null, isHint ? 'focus' : undefined);
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
  /** Whether the page has received all changes. */
  private _isUpToDate = false;
  private _model: IGpuShareModel;
  private _next = '';
  private _reported: [stream: string, kernel: string] = ['', ''];
  private _returns = new Returns();
  private _settled = new Debouncer(() => this._report(), SETTLED);
}

// SPDX-License-Identifier: BSD-3-Clause
import { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import { KernelMessage } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

/** Number of requests of other senders to keep. Only the last ones are looked up. */
const REMEMBERED = 20;

/** A request that this notebook did not send itself. */
interface IRequest {
  code: string;
  cell: CodeCell | null;
}

/**
 * Finds the cell that a request to the kernel runs.
 *
 * Where JupyterLab runs the cell, the cell has the request. Extensions that run cells on
 * the server (jupyter-server-nbmodel, jupyter-server-documents), and other pages of a
 * shared notebook, send requests that name no cell. The kernel broadcasts their code,
 * which identifies a cell that is marked as running and has this source.
 */
export class Runs implements IDisposable {
  constructor(panel: NotebookPanel) {
    this._panel = panel;
    panel.sessionContext.iopubMessage.connect(this._onMessage, this);
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    NotebookActions.executed.connect(this._onExecuted, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  /** Return the cell that the kernel is running for a request. */
  runningCell(message: string): CodeCell | null {
    if (this._ownCell(message) || this._requests.has(message)) {
      return this.cellOf(message);
    }
    // The page was loaded after the kernel had broadcast the code.
    const running = this._cells.filter(
      cell => isRunning(cell) && !cell.outputArea.future
    );
    return running.length === 1 ? (running[0] ?? null) : null;
  }

  /** Return the cell that a request runs or has run. */
  cellOf(message: string): CodeCell | null {
    const own = this._ownCell(message);
    const request = this._requests.get(message);
    if (own || !request) {
      return own;
    }
    // The mark may arrive later than the code, and a cell that is moved gets another widget.
    if (!request.cell || request.cell.isDisposed) {
      request.cell = this._find(request.code);
    }
    return request.cell;
  }

  private get _cells(): CodeCell[] {
    return this._panel.content.widgets.filter(
      (cell): cell is CodeCell => cell instanceof CodeCell
    );
  }

  /** The cell whose request was sent by this notebook. */
  private _ownCell(message: string): CodeCell | null {
    return (
      this._cells.find(
        cell => cell.outputArea.future?.msg.header.msg_id === message
      ) ?? null
    );
  }

  /** The cell with this source that another sender is running. */
  private _find(code: string): CodeCell | null {
    const others = [...this._scheduled]
      .filter(([cell, future]) => cell.outputArea.future === future)
      .map(([cell]) => cell);
    const marked = this._cells.filter(
      cell => isRunning(cell) && !this._scheduled.has(cell)
    );
    return (
      [...others, ...marked].find(
        cell => !cell.isDisposed && cell.model.sharedModel.getSource() === code
      ) ?? null
    );
  }

  private _onMessage(_: unknown, message: KernelMessage.IMessage): void {
    if (
      !KernelMessage.isExecuteInputMsg(message) ||
      !('msg_id' in message.parent_header)
    ) {
      return;
    }
    const id = message.parent_header.msg_id;
    if (this._ownCell(id)) {
      return;
    }
    const { code } = message.content;
    this._requests.set(id, { code, cell: this._find(code) });
    for (const old of [...this._requests.keys()].slice(0, -REMEMBERED)) {
      this._requests.delete(old);
    }
  }

  private _onScheduled(
    _: unknown,
    { notebook, cell }: { notebook: unknown; cell: unknown }
  ): void {
    if (notebook === this._panel.content && cell instanceof CodeCell) {
      this._scheduled.delete(cell);
      this._scheduled.set(cell, cell.outputArea.future);
    }
  }

  private _onExecuted(_: unknown, { cell }: { cell: unknown }): void {
    this._scheduled.delete(cell as CodeCell);
  }

  private _isDisposed = false;
  private _panel: NotebookPanel;
  /** Requests of other senders, by their message. */
  private _requests = new Map<string, IRequest>();
  /** Cells that this page is running, in the order in which they were started, and their previous requests. */
  private _scheduled = new Map<CodeCell, CodeCell['outputArea']['future']>();
}

/** Whether the document marks a cell as running. */
function isRunning(cell: CodeCell): boolean {
  return cell.model.sharedModel.executionState === 'running';
}

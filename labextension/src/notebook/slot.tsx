// SPDX-License-Identifier: BSD-3-Clause
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ReactWidget } from '@jupyterlab/ui-components';

/**
 * The place of the chip in a notebook's toolbar. JupyterLab's toolbar registry needs it from the
 * start, but its content is loaded only when a kernel uses the GPU.
 */
export class ToolbarSlot extends ReactWidget {
  constructor() {
    super();
    this.addClass('jp-GpuShare-chipItem');
    this.hide();
  }

  get content(): JSX.Element | null {
    return this._content;
  }
  set content(content: JSX.Element | null) {
    this._content = content;
    this.setHidden(content === null);
    this.update();
  }

  protected render(): JSX.Element | null {
    return this._content;
  }

  private _content: JSX.Element | null = null;
}

/** The slots of all notebooks. */
export class ToolbarSlots {
  /** Make the slot of a notebook; JupyterLab disposes of it with the toolbar. */
  add(panel: NotebookPanel): ToolbarSlot {
    const slot = new ToolbarSlot();
    this._slots.set(panel, slot);
    return slot;
  }

  /** The slot of a notebook; null if the user has removed it from the toolbar. */
  of(panel: NotebookPanel): ToolbarSlot | null {
    const slot = this._slots.get(panel);
    return slot && !slot.isDisposed ? slot : null;
  }

  private _slots = new WeakMap<NotebookPanel, ToolbarSlot>();
}

// SPDX-License-Identifier: BSD-3-Clause
import type { CodeCell } from '@jupyterlab/cells';
import {
  CodeMirrorEditorFactory,
  CodeMirrorMimeTypeService,
  EditorLanguageRegistry
} from '@jupyterlab/codemirror';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Notebook, NotebookModel, StaticNotebook } from '@jupyterlab/notebook';
import { RenderMimeRegistry } from '@jupyterlab/rendermime';
import { Toolbar } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import { Panel, Widget } from '@lumino/widgets';

import type { IStatus } from '../core/status';
import type { IDocuments, IGpuShareModel } from '../tokens';
import { nameGroups } from '../words/names';
import { trans } from './fixtures';

/** A notebook as JupyterLab makes it, with a toolbar and a kernel that only has an id. */
export class FakePanel extends Panel {
  constructor(kernel: string | null, cells = 2) {
    super();
    const editors = new CodeMirrorEditorFactory();
    this.content = new Notebook({
      rendermime: new RenderMimeRegistry(),
      contentFactory: new Notebook.ContentFactory({
        editorFactory: options => editors.newInlineEditor(options)
      }),
      mimeTypeService: new CodeMirrorMimeTypeService(
        new EditorLanguageRegistry()
      ),
      notebookConfig: {
        ...StaticNotebook.defaultNotebookConfig,
        windowingMode: 'none'
      }
    });
    const model = new NotebookModel();
    model.fromJSON({
      cells: Array.from({ length: cells }, (_, index) => ({
        cell_type: 'code' as const,
        id: `cell-${index}`,
        source: `step(${index})`,
        metadata: {},
        outputs: [],
        execution_count: null
      })),
      metadata: {},
      nbformat: 4,
      nbformat_minor: 5
    });
    this.content.model = model;
    this.sessionContext = {
      session: kernel ? { kernel: { id: kernel, status: 'idle' } } : null,
      iopubMessage: new Signal<unknown, unknown>(this),
      kernelChanged: new Signal<unknown, void>(this),
      statusChanged: new Signal<unknown, void>(this)
    };
    this.toolbar.addItem('kernelName', new Widget());
    this.addWidget(this.toolbar);
    this.addWidget(this.content);
    Widget.attach(this, document.body);
    model.dirty = false;
  }

  /** What a file would hold. */
  get saved(): string {
    return JSON.stringify(this.content.model?.toJSON());
  }

  cell(index: number): CodeCell {
    return this.content.widgets[index] as CodeCell;
  }

  /** Run a cell by a message of this id. */
  execute(index: number, msg_id: string): void {
    const future = {
      done: new Promise(() => undefined),
      dispose: () => undefined,
      msg: { header: { msg_id } }
    };
    this.cell(index).outputArea.future = future as never;
    if (this.content.model) {
      this.content.model.dirty = false;
    }
  }

  /** Let the kernel broadcast that it runs code for a request of any sender. */
  broadcast(msg_id: string, code: string): void {
    this.sessionContext.iopubMessage.emit({
      channel: 'iopub',
      header: { msg_type: 'execute_input' },
      parent_header: { msg_id },
      content: { code, execution_count: 1 }
    });
  }

  /** Mark a cell in the document as running, as servers and other pages do. */
  mark(index: number, state: 'running' | 'idle' = 'running'): void {
    this.cell(index).model.sharedModel.executionState = state;
  }

  get asPanel(): NotebookPanel {
    return this as unknown as NotebookPanel;
  }

  readonly content: Notebook;
  readonly sessionContext: {
    session: { kernel: { id: string; status: string } } | null;
    iopubMessage: Signal<unknown, unknown>;
    kernelChanged: Signal<unknown, void>;
    statusChanged: Signal<unknown, void>;
  };
  readonly toolbar = new Toolbar();
}

/** A tracker of these notebooks. */
export function makeTracker(...panels: FakePanel[]): INotebookTracker {
  return {
    forEach: (visit: (panel: FakePanel) => void) => panels.forEach(visit),
    widgetAdded: new Signal<object, FakePanel>({})
  } as unknown as INotebookTracker;
}

/** The documents in the status; one of them is active. */
export class FakeDocuments implements IDocuments {
  constructor(
    private _model: IGpuShareModel,
    public currentKernel: string | null = null
  ) {}

  get currentGroup(): ReturnType<IGpuShareModel['groupOf']> {
    return this._model.groupOf(this.currentKernel);
  }

  of(group: Parameters<IDocuments['of']>[0]): ReturnType<IDocuments['of']> {
    return group.sessions;
  }

  names(status: IStatus): ReturnType<IDocuments['names']> {
    return nameGroups(
      status.groups,
      group => group.sessions,
      () => '',
      trans
    );
  }

  readonly changed = new Signal<this, void>(this);
}

// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { IDocumentManager } from '@jupyterlab/docmanager';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { gpuShareIcon } from './icon';
import { StatusModel } from './model';
import { GpuSharePanel } from './panel';

const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'Shows who runs and who waits on the GPU that notebooks share.',
  autoStart: true,
  optional: [ITranslator, INotebookTracker, IDocumentManager, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null,
    documents: IDocumentManager | null,
    restorer: ILayoutRestorer | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpushare');
    const { serverSettings, events } = app.serviceManager;
    const panel = new GpuSharePanel({
      model: new StatusModel({ serverSettings, events }),
      trans,
      kernelId: () =>
        notebooks?.currentWidget?.sessionContext.session?.kernel?.id ?? null,
      open: path => documents?.openOrReveal(path)
    });
    panel.id = 'jupyter-gpushare-panel';
    panel.title.icon = gpuShareIcon;
    panel.title.caption = trans.__('GPU sharing');
    panel.node.setAttribute('role', 'region');
    panel.node.setAttribute('aria-label', trans.__('GPU sharing'));

    if (notebooks) {
      const update = (): void => panel.update();
      notebooks.currentChanged.connect(update);
      notebooks.widgetAdded.connect((_, notebook: NotebookPanel) =>
        notebook.sessionContext.kernelChanged.connect(update)
      );
    }
    app.shell.add(panel, 'right', { rank: 600, type: 'GPU sharing' });
    restorer?.add(panel, panel.id);
  }
};

export default panelPlugin;

// SPDX-License-Identifier: BSD-3-Clause
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';

import { Documents } from '../state/documents';
import { FocusReporter } from '../state/focus';
import { IDocuments, IGpuShareModel } from '../tokens';
import { Lifetime } from './lifetime';
import { load } from './translation';

const lifetime = new Lifetime();

export const documentsPlugin: JupyterFrontEndPlugin<IDocuments> = {
  id: 'jupyter-gpushare:documents',
  description: 'Tracks which notebooks and consoles use the GPU.',
  autoStart: true,
  provides: IDocuments,
  requires: [IGpuShareModel],
  optional: [INotebookTracker, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): IDocuments => {
    const { sessions, kernelspecs } = app.serviceManager;
    const documents = lifetime.add(
      new Documents({
        model,
        sessions,
        kernelspecs,
        shell: app.shell,
        notebooks,
        consoles,
        trans: load(translator)
      })
    );
    lifetime.add(new FocusReporter(model, documents));
    return documents;
  },
  deactivate: lifetime.end
};

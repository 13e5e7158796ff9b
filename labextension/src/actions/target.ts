// SPDX-License-Identifier: BSD-3-Clause
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Contents, Session } from '@jupyterlab/services';

import type { IGpuShareModel } from '../tokens';

export interface ITargetOptions {
  app: Pick<JupyterFrontEnd, 'contextMenuHitTest'>;
  model: Pick<IGpuShareModel, 'groupOf'>;
  sessions: Pick<Session.IManager, 'running'>;
  contents: Pick<Contents.IManager, 'localPath'>;
  notebooks: INotebookTracker | null;
  consoles: IConsoleTracker | null;
  files: IFileBrowserFactory | null;
}

/**
 * The id of the group whose context menu is open: on its row, its chip, or a tab, a file
 * or a kernel in JupyterLab's own lists. Null if the kernel there does not use the GPU.
 */
export function targetGroup(options: ITargetOptions): string | null {
  const { app, model } = options;
  let found: string | null = null;
  app.contextMenuHitTest(node => {
    found =
      node.dataset['group'] ??
      model.groupOf(kernelOf(node, options))?.id ??
      null;
    return found !== null;
  });
  return found;
}

/** The id of the kernel that an element of JupyterLab represents. */
function kernelOf(node: HTMLElement, options: ITargetOptions): string | null {
  const { id, context } = node.dataset;
  if (id) {
    const isTab = (widget: { id: string }): boolean => widget.id === id;
    const { notebooks, consoles } = options;
    const widget = notebooks?.find(isTab) ?? consoles?.find(isTab);
    return widget?.sessionContext.session?.kernel?.id ?? null;
  }
  if (node.classList.contains('jp-DirListing-item')) {
    // A click with the right button selects the file.
    const browser = options.files?.tracker.currentWidget;
    const [file] = browser?.selectedItems() ?? [];
    const path = file && options.contents.localPath(file.path);
    for (const session of options.sessions.running()) {
      if (session.path === path) {
        return session.kernel?.id ?? null;
      }
    }
  }
  // The running kernels of the sidebar carry their ids as the context.
  return context ?? null;
}

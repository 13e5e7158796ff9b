// SPDX-License-Identifier: BSD-3-Clause
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import React from 'react';

import type { ITranslation } from '../core/translation';
import { gpuShareIcon } from '../icon';
import type { IDocuments, IGpuShareModel } from '../tokens';
import type { PanelContent } from './content';
import { loadingText, titleText } from '../words/short';

/**
 * The side panel. Its content is loaded when it is first shown. It keeps the model up to date
 * while it is visible.
 */
export class GpuSharePanel extends ReactWidget {
  constructor(options: GpuSharePanel.IOptions) {
    super();
    const { trans } = options;
    this._options = options;
    this.id = 'jupyter-gpushare-panel';
    this.addClass('jp-GpuShare');
    this.title.icon = gpuShareIcon;
    this.title.caption = titleText(trans);
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', titleText(trans));
  }

  dispose(): void {
    this._look?.dispose();
    super.dispose();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._onShown();
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._onShown();
  }

  protected onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._onHidden();
  }

  protected onBeforeDetach(msg: Message): void {
    this._onHidden();
    super.onBeforeDetach(msg);
  }

  protected render(): JSX.Element {
    const { model, documents, commands, trans } = this._options;
    const Content = this._content;
    if (Content) {
      return (
        <Content
          model={model}
          commands={commands}
          trans={trans}
          names={status => documents.names(status)}
          currentGroup={() => documents.currentGroup?.id ?? null}
          currentKernel={() => documents.currentKernel}
          changed={documents.changed}
        />
      );
    }
    return this._failed ? (
      <div className="jp-GpuShare-placeholder" role="alert">
        <p>
          {trans.__(
            'The panel failed to load. Try again; if that does not help, reload the page.'
          )}
        </p>
        <button
          type="button"
          className="jp-mod-styled"
          onClick={() => this._load()}
        >
          {trans.__('Try Again')}
        </button>
      </div>
    ) : (
      <p className="jp-GpuShare-placeholder">{loadingText(trans)}</p>
    );
  }

  private _onShown(): void {
    if (this.isVisible) {
      this._look ??= this._options.model.look({ timeline: true });
      if (!this._content) {
        this._load();
      }
    }
  }

  private _onHidden(): void {
    this._look?.dispose();
    this._look = null;
  }

  private _load(): void {
    this._failed = false;
    this.update();
    this._options
      .load()
      .then(content => {
        this._content = content;
      })
      .catch((error: unknown) => {
        console.error(error);
        this._failed = true;
      })
      .finally(() => this.update());
  }

  private _content: typeof PanelContent | null = null;
  private _failed = false;
  private _look: IDisposable | null = null;
  private _options: GpuSharePanel.IOptions;
}

export namespace GpuSharePanel {
  export interface IOptions {
    model: IGpuShareModel;
    documents: IDocuments;
    commands: CommandRegistry;
    trans: ITranslation;
    /** Load the content. */
    load: () => Promise<typeof PanelContent>;
  }
}

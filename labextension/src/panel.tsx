// SPDX-License-Identifier: BSD-3-Clause
import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import React from 'react';

import type { StatusModel } from './model';
import { assignColours } from './palette';
import type { Colour, IGpuView, IRow, IView } from './view';
import { makeView } from './view';
import type { IExplanation } from './words';

/** The side panel: who has the GPU, who waits and why, and where the memory is. */
export class GpuSharePanel extends ReactWidget {
  constructor(options: GpuSharePanel.IOptions) {
    super();
    this._options = options;
    this.addClass('jp-GpuShare');
    options.model.changed.connect(this.update, this);
    document.addEventListener('visibilitychange', this._updateActive);
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._updateActive);
    super.dispose();
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._updateActive();
  }

  protected onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._updateActive();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._updateActive();
  }

  protected onBeforeDetach(msg: Message): void {
    this._options.model.active = false;
    super.onBeforeDetach(msg);
  }

  protected render(): JSX.Element {
    const { model, trans, kernelId, open } = this._options;
    const makeCurrentView = (): IView | null => {
      const { status, elapsed } = model;
      if (!status) {
        return null;
      }
      this._colours = assignColours(
        this._colours,
        status.groups.map(group => group.id)
      );
      return makeView(status, {
        trans,
        colours: this._colours,
        kernelId: kernelId(),
        elapsed: status.availability.code === 'ok' ? elapsed : 0
      });
    };
    return <Panel makeView={makeCurrentView} open={open} trans={trans} />;
  }

  private _updateActive = (): void => {
    this._options.model.active =
      this.isAttached && this.isVisible && !document.hidden;
  };

  private _colours: Map<string, number> = new Map();
  private _options: GpuSharePanel.IOptions;
}

export namespace GpuSharePanel {
  export interface IOptions {
    model: StatusModel;
    trans: TranslationBundle;
    /** The id of the kernel of the notebook in front. */
    kernelId: () => string | null;
    /** Open a document. */
    open: (path: string) => void;
  }
}

interface IProps {
  makeView: () => IView | null;
  open: (path: string) => void;
  trans: TranslationBundle;
}

function Panel({ makeView, open, trans }: IProps): JSX.Element {
  const [, tick] = React.useReducer((count: number) => count + 1, 0);
  const view = makeView();
  const ticking = view?.ticking ?? false;
  React.useEffect(() => {
    if (!ticking) {
      return;
    }
    const timer = window.setInterval(tick, 1000);
    return () => window.clearInterval(timer);
  }, [ticking]);
  const section = { open, trans };
  return (
    <>
      <h2 className="jp-GpuShare-title">{trans.__('GPU sharing')}</h2>
      <div className="jp-GpuShare-body">
        {view === null ? (
          <p className="jp-GpuShare-loading">{trans.__('Loading…')}</p>
        ) : (
          <>
            {view.gpus.map(gpu => (
              <Gpu key={gpu.uuid} gpu={gpu} />
            ))}
            {view.explanation && <Explanation {...view.explanation} />}
            {view.notices.map((notice, index) => (
              <p key={index} className="jp-GpuShare-notice">
                {notice}
              </p>
            ))}
            <Section
              {...section}
              id="running"
              label={trans.__('Running')}
              rows={view.running}
            />
            <Section
              {...section}
              id="waiting"
              label={trans.__('Waiting')}
              rows={view.waiting}
            />
            <Section
              {...section}
              id="idle"
              label={trans.__('Idle')}
              rows={view.idle}
            />
          </>
        )}
      </div>
      <div className="jp-GpuShare-announcement" role="status">
        {view?.announcement}
      </div>
    </>
  );
}

function Explanation({ title, text, command }: IExplanation): JSX.Element {
  return (
    <div className="jp-GpuShare-explanation">
      <h3>{title}</h3>
      <p>{text}</p>
      {command && <code>{command}</code>}
    </div>
  );
}

function Gpu({ gpu }: { gpu: IGpuView }): JSX.Element {
  return (
    <section className="jp-GpuShare-gpu" aria-label={gpu.name}>
      <h3>
        {gpu.name} <small>{gpu.label}</small>
      </h3>
      <div
        className="jp-GpuShare-bar"
        role="img"
        aria-label={gpu.segments.map(segment => segment.title).join(', ')}
      >
        {gpu.segments.map(segment => (
          <span
            key={segment.key}
            className="jp-GpuShare-segment"
            data-colour={segment.colour}
            style={{ width: `${segment.percent}%` }}
            title={segment.title}
          />
        ))}
      </div>
      <div className="jp-GpuShare-figures">
        <span>{gpu.used}</span>
        <span>{gpu.host}</span>
      </div>
      {gpu.legend.length > 0 && (
        <div className="jp-GpuShare-legend">
          {gpu.legend.map(({ colour, text }) => (
            <span key={colour}>
              <Swatch colour={colour} />
              {text}
            </span>
          ))}
        </div>
      )}
    </section>
  );
}

interface ISectionProps {
  id: string;
  label: string;
  rows: IRow[];
  open: (path: string) => void;
  trans: TranslationBundle;
}

function Section(props: ISectionProps): JSX.Element | null {
  const { id, label, rows, open, trans } = props;
  if (rows.length === 0) {
    return null;
  }
  const heading = `jp-GpuShare-${id}`;
  return (
    <section className="jp-GpuShare-section" aria-labelledby={heading}>
      <h3 id={heading}>
        {label} <small>{rows.length}</small>
      </h3>
      <ul role="list">
        {rows.map(row => (
          <Row key={row.id} row={row} open={open} trans={trans} />
        ))}
      </ul>
    </section>
  );
}

interface IRowProps {
  row: IRow;
  open: (path: string) => void;
  trans: TranslationBundle;
}

function Row({ row, open, trans }: IRowProps): JSX.Element {
  const { path } = row;
  return (
    <li
      className="jp-GpuShare-row"
      aria-current={row.current ? 'true' : undefined}
    >
      <Swatch colour={row.colour} position={row.position} trans={trans} />
      <div className="jp-GpuShare-name">
        {path === null ? (
          <span title={row.name}>{row.name}</span>
        ) : (
          <button
            type="button"
            title={trans.__('Open %1', path)}
            onClick={() => open(path)}
          >
            {row.name}
          </button>
        )}
        {row.current && (
          <span className="jp-GpuShare-current">{trans.__('this one')}</span>
        )}
      </div>
      <div className="jp-GpuShare-figure" title={row.figureTitle}>
        {row.figure}
      </div>
      <div className="jp-GpuShare-detail">
        {row.detail}
        {row.outlook && <div>{row.outlook}</div>}
      </div>
    </li>
  );
}

interface ISwatchProps {
  colour: Colour;
  position?: number | null;
  trans?: TranslationBundle;
}

function Swatch({ colour, position, trans }: ISwatchProps): JSX.Element {
  const place = position ?? null;
  return (
    <span
      className="jp-GpuShare-swatch"
      data-colour={colour}
      data-position={place ?? undefined}
      role={place === null ? undefined : 'img'}
      aria-label={place === null ? undefined : trans?.__('position %1', place)}
    >
      {place}
    </span>
  );
}

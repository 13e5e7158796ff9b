// SPDX-License-Identifier: BSD-3-Clause
import { caretDownIcon, caretRightIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { ITranslation } from '../core/translation';
import type { IGroupShare } from '../core/shares';
import type { IGpu, IHost, ITimeline } from '../core/status';
import { busyText } from '../words/panel';
import type { IWording } from '../words/short';
import type { Clock } from './clock';
import { useClock } from './clock';
import type { ISegment } from './memory';
import { makeGpu } from './memory';
import { utilisationPath } from './timeline/lanes';

const SPARK = { width: 64, height: 14 };

export interface IGpuProps {
  gpu: IGpu;
  /** Whether there are other GPUs. */
  several: boolean;
  /** Whether a notebook is running on it. */
  isInUse: boolean;
  shares: readonly IGroupShare[];
  host: IHost | null;
  samples: ITimeline['samples'] | undefined;
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  /** The length of its utilisation history in seconds. */
  seconds: number;
}

/** The name of a GPU's model without the vendor, and without the memory size, which is shown next to it. */
function shortModel(name: string): string {
  return name.replace(/^NVIDIA /, '').replace(/[ -]\d+ ?GB.*$/, '');
}

/** The arrow in front of a line that unfolds. */
export function Caret({ open }: { open: boolean }): JSX.Element {
  return open ? (
    <caretDownIcon.react tag="span" className="jp-GpuShare-caret" />
  ) : (
    <caretRightIcon.react tag="span" className="jp-GpuShare-caret" />
  );
}

function GpuLine(props: IGpuProps): JSX.Element {
  const { gpu, several, isInUse, shares, host, samples } = props;
  const { colours, wording, clock, seconds } = props;
  const { trans } = wording;
  const [open, setOpen] = React.useState(false);
  const view = makeGpu(gpu, shares, host, colours, wording);
  const number = trans.__('GPU %1', gpu.index);
  const model = shortModel(gpu.name);
  const busy = busyText(gpu.utilization, isInUse, trans);
  const details = `jp-GpuShare-gpu-${gpu.uuid}`;
  return (
    <div
      className="jp-GpuShare-gpu"
      role="group"
      aria-label={trans.__('GPU %1, %2', gpu.index, gpu.name)}
    >
      <button
        type="button"
        className="jp-GpuShare-line"
        aria-expanded={open}
        aria-controls={details}
        title={`${gpu.name}\n${gpu.uuid}`}
        onClick={() => setOpen(!open)}
      >
        <Caret open={open} />
        <span className="jp-GpuShare-gpuName">
          {several ? number : model}
          {several && <small>{model}</small>}
        </span>
        <Bar segments={view.segments} />
        <span className="jp-GpuShare-used">{view.used}</span>
        {busy && <span className="jp-GpuShare-busy">{busy}</span>}
      </button>
      {gpu.draining && (
        <p className="jp-GpuShare-draining">
          {trans.__(
            'Draining: an administrator is emptying this GPU. No new leases are granted.'
          )}
        </p>
      )}
      <div id={details} className="jp-GpuShare-gpuMore" hidden={!open}>
        {open && (
          <>
            <Contents
              label={trans.__('Contents of its memory')}
              parts={view.free ? [...view.segments, view.free] : view.segments}
            />
            {view.host.length > 0 && (
              <Bar
                label={trans.__('Host memory')}
                segments={view.host}
                trans={trans}
              />
            )}
            {view.hostText && <p>{view.hostText}</p>}
            <Utilisation
              gpu={gpu}
              text={busy}
              samples={samples}
              seconds={seconds}
              clock={clock}
              wording={wording}
            />
          </>
        )}
      </div>
    </div>
  );
}

/** A GPU as one line, which unfolds. It is rendered again only when its properties change. */
export const Gpu = React.memo(GpuLine);

interface IContentsProps {
  label: string;
  parts: ISegment[];
}

/** The list of a GPU's contents. */
function Contents({ label, parts }: IContentsProps): JSX.Element {
  return (
    <ul className="jp-GpuShare-contents" role="list" aria-label={label}>
      {parts.map(({ key, part, colour, name, size }) => (
        <li key={key}>
          <span
            className="jp-GpuShare-key"
            data-part={part}
            data-colour={colour ?? undefined}
          />
          <span title={name}>{name}</span>
          <span>{size}</span>
        </li>
      ))}
    </ul>
  );
}

type BarProps = {
  segments: ISegment[];
} & ({ label: string; trans: ITranslation } | { label?: undefined });

/** A memory bar. It needs no label if the text next to it has the figures. */
export function Bar(props: BarProps): JSX.Element {
  const { segments } = props;
  const accessible =
    props.label === undefined
      ? ({ 'aria-hidden': true } as const)
      : {
          role: 'img',
          'aria-label': props.trans.__(
            '%1: %2',
            props.label,
            segments.map(({ title }) => title).join(', ')
          )
        };
  return (
    <span className="jp-GpuShare-bar" {...accessible}>
      {segments.map(({ key, part, colour, percent, title }) => (
        <span
          key={key}
          data-part={part}
          data-colour={colour ?? undefined}
          style={{ width: `${percent}%` }}
          title={title}
        />
      ))}
    </span>
  );
}

interface IUtilisationProps {
  gpu: IGpu;
  text: string;
  samples: ITimeline['samples'] | undefined;
  seconds: number;
  clock: Clock;
  wording: IWording;
}

function Utilisation(props: IUtilisationProps): JSX.Element | null {
  const { gpu, text, samples, seconds, clock, wording } = props;
  const { trans } = wording;
  const { width, height } = SPARK;
  // Update only when the picture moves by a pixel.
  const step = seconds / width;
  const now = useClock(clock, now => Math.ceil(now / step) * step);
  const path = React.useMemo(
    () =>
      samples
        ? utilisationPath(samples, gpu.uuid, now, seconds, width, height - 1)
        : '',
    [samples, gpu.uuid, now, seconds, width, height]
  );
  if (gpu.utilization === null) {
    return null;
  }
  return (
    <p
      className="jp-GpuShare-utilisation"
      title={trans._n(
        'Share of time in which a CUDA kernel was running, now and in the last minute',
        'Share of time in which a CUDA kernel was running, now and in the last %1 minutes',
        seconds / 60
      )}
    >
      {path && (
        <svg
          aria-hidden="true"
          viewBox={`0 0 ${width} ${height}`}
          width={width}
          height={height}
        >
          <path
            className="jp-GpuShare-area"
            d={`${path}V${height}H${path.slice(1, path.indexOf(' '))}z`}
          />
          <path
            className="jp-GpuShare-curve"
            d={path}
            transform="translate(0 0.5)"
          />
        </svg>
      )}
      {text}
    </p>
  );
}

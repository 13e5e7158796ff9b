// SPDX-License-Identifier: BSD-3-Clause
import { LabIcon } from '@jupyterlab/ui-components';

import svg from '../style/icons/gpushare.svg';

/** A chip with a queue inside. */
export const gpuShareIcon = new LabIcon({
  name: 'jupyter-gpushare:gpu',
  svgstr: svg
});

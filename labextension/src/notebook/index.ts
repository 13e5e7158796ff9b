// SPDX-License-Identifier: BSD-3-Clause

// What is loaded when some kernel first uses the GPU, its style too.
import '../../style/notebook.css';

export { NotebookParts } from './parts';

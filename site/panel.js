/* Behind the recorded runs of a panel: shows the one that is chosen. */
{
  const panel = document.currentScript.parentElement;
  const choices = [...panel.querySelectorAll('select')];
  const choose = () => {
    const wanted = choices.map(choice => choice.value).join(' ');
    for (const run of panel.querySelectorAll('[data-run]')) run.hidden = run.dataset.run !== wanted;
  };
  panel.addEventListener('change', choose);
  window.addEventListener('pageshow', choose);  /* a browser that goes back puts the lists where they were */
}
